"""Words of a command line before click and HfArgumentParser read them."""

import pytest

from hf_memory.experiments.grammar import repeat_flags


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("", ""),
        ("--data a=1", "--data a=1"),
        ("--data a=1 b=2 c=3", "--data a=1 --data b=2 --data c=3"),
        ("--data a=1 --data b=2 c=3", "--data a=1 --data b=2 --data c=3"),
        ("--data=a=1 b=2", "--data a=1 --data b=2"),
        ("--data=a=1 --data=b=x=y", "--data a=1 --data b=x=y"),
        ("--data a=1 --model b=2 c=3", "--data a=1 --model b=2 --model c=3"),
        ("--data a=-1 b= c=--x", "--data a=-1 --data b= --data c=--x"),
        # What does not look like name=value ends the pairs.
        ("data export --data length=6 bit_parity out", "data export --data length=6 bit_parity out"),
        ("--data a=1 out b=2 c=3", "--data a=1 out b=2 c=3"),
        ("--data a=1 b=2 -- c=3 d=4 --data e=5 f=6", "--data a=1 --data b=2 -- c=3 d=4 --data e=5 f=6"),
        ("--data a=1 --seed 3 b=2", "--data a=1 --seed 3 b=2"),
        ("--data a=1 --lr -3 --max_steps=-1 b=2", "--data a=1 --lr -3 --max_steps=-1 b=2"),
        ("--data a=1 runs/x=1 b=2", "--data a=1 runs/x=1 b=2"),
        ("--data a=1 1a=2 b=2", "--data a=1 1a=2 b=2"),
        # What is wrong stays as it is, for the parser to say so.
        ("--data", "--data"),
        ("--data num_train b=2", "--data num_train b=2"),
        ("--data --data a=1 b=2", "--data --data a=1 --data b=2"),
        # Flags that only begin alike, and pairs without a flag.
        ("--data_seed 3 a=1 b=2 --data-seed=4 c=3", "--data_seed 3 a=1 b=2 --data-seed=4 c=3"),
        ("a=1 b=2 --message a=1 b=2", "a=1 b=2 --message a=1 b=2"),
    ],
)
def test_each_pair_gets_a_flag_of_its_own(given, read):
    assert repeat_flags(given.split()) == read.split()
    assert repeat_flags(read.split()) == read.split()


def test_a_value_is_one_word_of_the_shell():
    words = ["--data", "length=[3, 40]", "alphabet=a b", "bit_parity", "out put"]
    assert repeat_flags(words) == ["--data", "length=[3, 40]", "--data", "alphabet=a b", "bit_parity", "out put"]
    assert words[2] == "alphabet=a b"
    assert repeat_flags(["--data="]) == ["--data", ""]
