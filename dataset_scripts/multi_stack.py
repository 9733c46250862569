"""The published edition of ``hf_memory/multi_stack``: many stacks, pushed and popped.

Usage::

    python dataset_scripts/multi_stack.py --output_dir out
    python dataset_scripts/multi_stack.py --push_to_hub <namespace>/multi_stack
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="multi_stack",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "stacks64_ops85": {"length": 85, "test_lengths": (85, 170, 341)},
        "stacks64_ops170": {"length": 170, "test_lengths": (170, 341)},
        "stacks64_ops341": {"length": 341, "test_lengths": (341, 682)},
        "stacks64_ops682": {"length": 682, "test_lengths": (682,)},
        "stacks8_ops84_pushes_first": {"length": 84, "test_lengths": (84, 168, 336)},
        "stacks4_ops20": {"length": 20, "test_lengths": (20, 40, 80)},
        "stacks1_ops20": {"length": 20, "test_lengths": (20, 40, 80)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
