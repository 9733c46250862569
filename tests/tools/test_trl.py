"""TRL trains on the text of a task, whose tokenizer has words for the end and for padding."""

import datasets
import numpy as np
import pytest

from hf_memory.data.specification import specify
from hf_memory.data.tokenizers import task_tokenizer
from hf_memory.mixers.auto import mixer_config, mixer_model

pytestmark = [pytest.mark.tools, pytest.mark.filterwarnings("ignore::FutureWarning")]


def test_a_model_learns_from_text(tmp_path):
    from trl import SFTConfig, SFTTrainer

    task = specify("string_copy", length=8, alphabet_size=4).task
    tokenizer = task_tokenizer(task, eos_token="<eos>", pad_token="<pad>")
    ids, _ = task.sample(np.random.default_rng(0), 8, 64)
    rows = datasets.Dataset.from_dict({"text": [f"{tokenizer.decode(row)} <eos>" for row in ids]})
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = mixer_config("lstm", vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, **special)
    arguments = SFTConfig(
        output_dir=str(tmp_path), max_steps=20, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=1,
        report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        save_strategy="no",
    )  # fmt: skip
    trainer = SFTTrainer(
        model=mixer_model(config, "causal"), args=arguments, train_dataset=rows, processing_class=tokenizer
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(np.log(len(tokenizer)), rel=0.1)  # every word is as likely
    assert losses[-1] < losses[0] - 0.3
    # One word a token, and one more for the end: nothing was split, lost or unknown.
    assert trainer.state.log_history[0]["num_tokens"] == 8 * (len(ids[0]) + 1)
