"""Many runs: a recipe becomes cells, workers run them, and what they measured is judged."""
