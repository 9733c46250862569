"""What people look at: figures, tables and pages, all of them drawn from result rows."""
