"""The figure of outputs over time, drawn for outputs that are known."""

import numpy as np
import pytest
import torch
from torch import nn

from hf_memory.cli.app import draw_outputs
from hf_memory.data.specification import specify
from hf_memory.mixers.auto import mixer_config, mixer_model
from hf_memory.models.heads import MemoryHeadOutput
from hf_memory.reports.outputs import plot_outputs


class Repeat(nn.Module):
    """Outputs its input: right at most steps, and one step late at every end."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, input_ids, labels, return_logits, attention_mask=None):
        return MemoryHeadOutput(predictions=input_ids.float(), token_loss=torch.zeros(input_ids.shape))


def splits_of(specification, names, n=8):
    found = {}
    for name in names:
        part = specification.splits[name].parts[0]
        ids, labels = part.task.sample(np.random.default_rng(0), 200, n)
        found[name] = {"input_ids": ids, "labels": labels}
    return found


def test_every_end_is_marked_with_its_error():
    specification = specify("interval_counting", "isi10_len200")
    splits = splits_of(specification, ["validation", "test_two_isi_60"])
    figure = plot_outputs(Repeat(), specification, splits)
    first, second = figure.axes
    total = sum(int((np.diff(row) == -1).sum()) for row in splits["validation"]["input_ids"])
    assert first.get_title(loc="left") == f"validation: 0 of {total} ends exact"
    assert second.get_title(loc="left") == "test_two_isi_60: 0 of 16 ends exact"
    lines = {line.get_label(): line for line in second.get_lines()}
    output = lines["output, the next input foretold"].get_ydata()
    ids = splits["test_two_isi_60"]["input_ids"]
    assert any((output[:-1] == row[:-1]).all() for row in ids)
    assert np.isnan(output[-1])
    assert len(lines["end foretold at its step"].get_xdata()) == 0
    assert len(lines["end not foretold at its step"].get_xdata()) == 2
    assert [text.get_text() for text in second.texts] == ["+1", "+1"]


class Foretell(Repeat):
    """Outputs the next input, which is right everywhere but in the middle of two intervals that follow at once."""

    def forward(self, input_ids, labels, return_logits, attention_mask=None):
        return MemoryHeadOutput(predictions=labels.float(), token_loss=torch.zeros(input_ids.shape))


def test_the_reason_stands_beside_an_end_at_its_step():
    specification = specify("interval_counting", "isi10_len200")
    splits = splits_of(specification, ["test_two_isi_60", "test_double_isi_0"])
    plain, double = plot_outputs(Foretell(), specification, splits).axes
    assert plain.get_title(loc="left") == "test_two_isi_60: 16 of 16 ends exact"
    assert len(plain.texts) == 0
    assert double.get_title(loc="left") == "test_double_isi_0: 0 of 8 ends exact"
    assert [text.get_text() for text in double.texts] == ["no end in the middle"]
    with pytest.raises(ValueError, match="unknown split: .test_9."):
        plot_outputs(Foretell(), specification, {"test_9": splits["test_two_isi_60"]})


def test_a_checkpoint_is_drawn_to_a_file(tmp_path):
    specification = specify("interval_counting", "isi10_len200")
    config = mixer_config("gru", vocab_size=2, hidden_size=8, num_labels=1, problem_type="regression")
    mixer_model(config, "token_classification").save_pretrained(tmp_path / "gru")
    draw_outputs(tmp_path / "out.png", tmp_path / "gru", specification, splits_of(specification, ["test_double_isi_0"]))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_other_tasks_and_empty_splits_are_refused():
    with pytest.raises(ValueError, match="drawn for interval_counting, got bit_parity"):
        plot_outputs(Repeat(), specify("bit_parity"), {})
    with pytest.raises(ValueError, match="at least one"):
        plot_outputs(Repeat(), specify("interval_counting"), {})
