"""Pure functions on tensors, one file per recurrence.

Every recurrence is a function from inputs and an initial state to outputs and a final state. Its file holds the
definition, a loop that reads like the equation (``<op>_recurrent``), and the fast forms that must match it
(``<op>_chunked``, ``<op>_parallel``); the public ``<op>`` chooses between them.

Axis letters used in every docstring of the package:

    B  batch                    K  key dimension per head
    T  time                     V  value dimension per head
    D  width of the model       N  state size per channel
    H  heads                    W  width of a convolution kernel
    C  classes                  S  columns held by a growing state

Tensors are laid out batch, time, heads, dimension. A final state is the state at each row's own length: where
``lengths`` (B,) is given, steps at and after a row's length leave its state unchanged, and a length of zero returns the
initial state. States accumulate in ``promote_types(input dtype, float32)``.
"""
