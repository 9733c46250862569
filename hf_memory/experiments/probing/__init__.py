"""Probing: what a causal model that exists already recalls, whatever it was trained on.

A task's symbols become words of the model's own vocabulary (``words``), laid out in a named format (``formats``); rows
are drawn by laws (``laws``, ``streams``); the model runs over them with its state found, copied and measured
(``subject``, ``states``, ``passes``); answers are scored beside what rules without memory reach (``scores``,
``intervals``); and each cell of model, task, length and format becomes result rows (``cells``).
"""
