"""What the state of a trained model holds: its numbers after each token of a row, beside what is due there.

    python examples/inspect_state.py                              # an LSTM that comes with the repository
    python examples/inspect_state.py --mixer delta_net --plot state.png    # trains one, some 20 seconds
    python examples/inspect_state.py --checkpoint runs/lstm       # a checkpoint that `hf-memory train` wrote
    python examples/inspect_state.py --mixer gru --smoke          # a few seconds; the model learns nothing

Parity needs one bit of memory. The table shows, of all numbers in the state of the last layer, the one that goes best
with that bit; a model that has learned the task keeps the bit in its state, and often in a single number.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from hf_memory.data import MemoryCollator, TensorRows, specify
from hf_memory.data.builder import load_dataset
from hf_memory.experiments.evaluation import load_for_task
from hf_memory.experiments.training import MemoryTrainer, model_for_task, training_arguments
from hf_memory.mixers.auto import model_keys
from hf_memory.models.modeling import MemoryPreTrainedModel

LENGTH = 32
CHECKPOINT = Path(__file__).parent / "checkpoints" / "bit_parity-lstm"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--mixer", choices=model_keys(), help="mixer to train")
    asked.add_argument("--checkpoint", default=CHECKPOINT, help="trained model of bit parity")
    parser.add_argument("--plot", type=Path, help="file of a figure: the number over the tokens of the row")
    parser.add_argument("--smoke", action="store_true", help="a few steps only")
    arguments = parser.parse_args(argv)

    task = specify("bit_parity").task
    if arguments.smoke and not arguments.mixer:
        parser.error("--smoke shortens the training of a --mixer")
    if arguments.mixer:
        model = model_for_task(arguments.mixer, task, hidden_size=32, num_hidden_layers=1)
    else:
        model = load_for_task(str(arguments.checkpoint), task)
    if any(layer.mixer.growing_state for layer in model.model.layers):
        parser.error("the state grows with the length: choose a model whose state has a fixed size")
    if arguments.mixer:
        train(model, arguments.smoke)
    ids, labels = (torch.from_numpy(a).long() for a in task.sample(np.random.default_rng(1), LENGTH, 256))
    with torch.no_grad():
        outputs = model.eval()(ids, output_states=True, output_hidden_states=True)

    # Leaves are (B, T, ...): one state after each token. All numbers of the last layer side by side:
    numbers = {name: leaf.flatten(2) for name, leaf in outputs.states[-1].items() if leaf.is_floating_point()}
    name, index, correlation = best_number(numbers, labels)
    values = numbers[name][0, :, index]

    # Eigenvalues of d state_t / d state_{t-1} at the inputs of the last mixer.
    block = model.model.layers[-1]
    with torch.no_grad():
        spectrum = block.mixer.transition_spectrum(block.norm(outputs.hidden_states[-2]))[0]

    size = sum(leaf.shape[-1] for leaf in numbers.values())
    print(f"state of the last layer: {size} numbers in {', '.join(numbers)}")
    print(f"best number: {name}[{index}], correlation with the parity {correlation:+.2f} over {labels.numel()} tokens")
    print("step  token  due  answer  number  eigenvalues")
    for step, answer in enumerate(outputs.logits[0].argmax(-1).tolist()):
        low, high = spectrum[step].tolist()
        token, due = ids[0, step].item(), labels[0, step].item()
        print(f"{step:4d}  {token:5d}  {due:3d}  {answer:6d}  {values[step]:+6.2f}  {low:+.2f} to {high:+.2f}")
    if arguments.plot:
        plot(values.numpy(), labels[0].numpy(), f"{name}[{index}]", arguments.plot)
        print(f"figure: {arguments.plot}")


def train(model: MemoryPreTrainedModel, smoke: bool) -> None:
    """Teach a model the parity of bits."""
    data = load_dataset(
        "hf_memory/bit_parity", length=LENGTH, num_train=512 if smoke else 20_000, num_validation=64, num_test=64
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = MemoryTrainer(
            model=model,
            args=training_arguments(folder, learning_rate=1e-2, max_steps=5 if smoke else 300, disable_tqdm=True),
            train_dataset=TensorRows(data["train"]),
            data_collator=MemoryCollator(),
        )
        trainer.train()
    model.cpu()


def best_number(numbers: dict[str, torch.Tensor], labels: torch.Tensor) -> tuple[str, int, float]:
    """The leaf and place of the number (B, T, N) that correlates best with labels (B, T), and the correlation."""
    due = labels.flatten().double()
    due = (due - due.mean()) / due.std()
    best = ("", 0, 0.0)
    for name, leaf in numbers.items():
        columns = leaf.flatten(0, 1).double()
        columns = (columns - columns.mean(0)) / columns.std(0).clamp(min=1e-12)
        found = (columns * due.unsqueeze(1)).mean(0)
        index = int(found.abs().argmax())
        if abs(found[index].item()) >= abs(best[2]):
            best = (name, index, found[index].item())
    return best


def plot(values: np.ndarray, labels: np.ndarray, name: str, path: Path) -> None:
    """Draw a number of the state over the tokens of a row; points are filled where the parity is odd."""
    figure = Figure(figsize=(7, 2.5), layout="constrained")
    axes = figure.add_subplot()
    steps = np.arange(len(values))
    axes.plot(steps, values, color="#191980", linewidth=1)
    for parity, fill in ((0, "white"), (1, "#191980")):
        chosen = labels == parity
        axes.plot(steps[chosen], values[chosen], "o", color="#191980", markerfacecolor=fill, label=f"parity {parity}")
    axes.set(xlabel="token", ylabel=name)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
