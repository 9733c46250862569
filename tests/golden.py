"""What a version of a task promises: its rows never change.

Each line holds the version, a digest of the first training rows of all presets but those that joined later, and the
digest of the default dataset. The tests that compare print what is missing.
"""

GOLDEN = {
    "associative_recall": ("1.0.0", "7ead0bef220a3176", "d1d5bd6a14dc68fc"),
    "bit_parity": ("1.0.0", "d3190566969bb8a5", "67d51e48ecbb58a0"),
    "compositional_mqar": ("1.0.0", "a9d7c9e1ec58e940", "4652d7292c7517b7"),
    "context_recall": ("1.0.0", "61ca9b84790d2b3e", "2b2801e3234f73f2"),
    "copying": ("1.0.0", "d7bdaa3a683999f7", "422701f9bedfe174"),
    "cycle_navigation": ("1.0.0", "d6a15d1d6c422c36", "94dc64cf2bf55e7b"),
    "dyck": ("1.0.0", "0a74515e1faa664f", "8b824925911b2418"),
    "even_pairs": ("1.0.0", "1d0fd3e9569b981a", "01a3831b7f632783"),
    "flip_flop": ("1.0.0", "4a63e56454b435f9", "2c6b3b92f7aae573"),
    "group_word_problem": ("1.0.0", "1cf2676d901e3e8a", "a85cd1a009607ed5"),
    "induction": ("1.0.0", "580f5f8edaeab555", "abbf31837fc50aef"),
    "interval_counting": ("1.0.0", "c79b1b8742fc38c4", "f1ece6b3b75065b3"),
    "memorisation": ("1.0.0", "fb77f0743828ece6", "59c9e2c7c6bc9e31"),
    "modular_arithmetic": ("1.0.0", "0e7a2a96dec3059f", "8e9ebee818a1a913"),
    "mqar": ("1.0.0", "e16ace756859cea9", "1072c26259f7a8f0"),
    "multi_stack": ("1.0.0", "3b42f429110d62d8", "a2159493501234e5"),
    "reverse": ("1.0.0", "afd0965232415b8c", "d063701bf9e9c8f7"),
    "selective_copying": ("1.0.0", "2b02bbff805a19ef", "e29c69d7f5c51bb5"),
    "state_naming": ("1.0.0", "d9781de0870400dc", "3e8687f86423a09e"),
    "state_recall": ("1.0.0", "5a1ec2214bd74b80", "46171d5e36f06a12"),
    "string_copy": ("1.0.0", "b55cba9748b7da8d", "ae70c51c065781bc"),
    "updating_mqar": ("1.0.0", "a9d60f52ac3d237c", "346dcbae0cab1636"),
}
