"""The published edition of ``hf_memory/state_naming``: the state of an automaton, named at every symbol.

Usage::

    python dataset_scripts/state_naming.py --output_dir out
    python dataset_scripts/state_naming.py --push_to_hub <namespace>/state_naming
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="state_naming",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "gap1_copies20": {"length": 400, "test_lengths": (400, 800)},
        "gap1_copies40": {"length": 400, "test_lengths": (400, 800)},
        "gaps_copies20": {"length": 1300, "test_lengths": (1300,)},
        "distractors_copies20": {"length": 200, "test_lengths": (200,)},
        "carried_copies20": {"length": 200, "test_lengths": (200, 400)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
