"""The published edition of ``hf_memory/group_word_problem``: running product of group elements.

The configurations without ``length`` take their training lengths, and the shares of these, from their presets.

Usage::

    python dataset_scripts/group_word_problem.py --output_dir out
    python dataset_scripts/group_word_problem.py --push_to_hub <namespace>/group_word_problem
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="group_word_problem",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "a5_k8": {"num_train": 103_600, "test_lengths": (8, 16, 24, 32, 40, 64, 128, 256, 512)},
        "a4xz5_k8": {"num_train": 103_600, "test_lengths": (8, 16, 24, 32, 40, 64, 128, 256, 512)},
        "z60_k8": {"num_train": 103_600, "test_lengths": (8, 16, 24, 32, 40, 64, 128, 256, 512)},
        "a5_k8_pairs10": {"num_train": 100_000, "test_lengths": (8, 16, 24, 32, 40, 64, 128, 256, 512)},
        "a4xz5_k8_pairs10": {"num_train": 100_000, "test_lengths": (8, 16, 24, 32, 40, 64, 128, 256, 512)},
        "z60_k8_pairs10": {"num_train": 100_000, "test_lengths": (8, 16, 24, 32, 40, 64, 128, 256, 512)},
        "s3_k8": {"num_train": 100_036, "test_lengths": (8, 16, 24, 32, 40, 64, 128, 256, 512)},
        "s5_k8": {"num_train": 114_400, "test_lengths": (8, 16, 24, 32, 40, 64, 128, 256, 512)},
        "a5_k16": {"length": 16, "test_lengths": (16,)},
        "a5_k32": {"length": 32, "test_lengths": (32,)},
        "a5_k64": {"length": 64, "test_lengths": (64,)},
        "s5_k32": {"length": 32, "test_lengths": (32, 64, 128, 256)},
        "s5_swaps_k32": {"length": 32, "test_lengths": (32, 64, 128, 256)},
        "s5_moves_3_k32": {"length": 32, "test_lengths": (32, 64, 128, 256)},
        "s5_4_tokens_copies_k16": {"length": 16, "test_lengths": (16, 32, 64)},
        "a5_2_generators_k40": {"length": (3, 40), "test_lengths": (40, 64, 128, 256)},
        "s5_4_generators_k40": {"length": (3, 40), "test_lengths": (40, 64, 128, 256)},
        "s5_32_generators_k40": {"length": (3, 40), "test_lengths": (40, 64, 128, 256)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
