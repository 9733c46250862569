"""What the tests of probing share: tokenizers, tiny models of transformers, and an induction head set by hand."""

import itertools
import math

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
    xLSTMConfig,
    xLSTMForCausalLM,
)

CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"
NUM_WORDS = 59


def words(count: int = NUM_WORDS) -> list[str]:
    """Words of four letters whose first letters come in turn."""
    endings = ["".join(letters) for letters in itertools.product(VOWELS, CONSONANTS, VOWELS)]
    return [CONSONANTS[n % len(CONSONANTS)] + endings[n // len(CONSONANTS)] for n in range(count)]


def word_tokenizer(*, bos: bool = True, count: int = NUM_WORDS) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, with ``:`` and line breaks, and no padding token."""
    names = ["<s>", "<unk>", ":", "\n", *words(count)]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>"))
    parts = [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, pre_tokenizers.Split(":", "isolated")])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


VOCABULARY = NUM_WORDS + 4
_SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 0, "eos_token_id": 0}
_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64}


def tiny(name: str) -> PreTrainedModel:
    """A random model of transformers."""
    torch.manual_seed(0)
    made = {
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=64, **_ENDS)
        ),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SMALL, **_HEADS)),
        "mamba": lambda: MambaForCausalLM(MambaConfig(**_SMALL, state_size=8)),
        "mamba2": lambda: Mamba2ForCausalLM(
            Mamba2Config(**_SMALL, state_size=8, head_dim=16, num_heads=4, n_groups=1, chunk_size=16)
        ),
        "rwkv": lambda: RwkvForCausalLM(RwkvConfig(**_SMALL)),
        "falcon_h1": lambda: FalconH1ForCausalLM(
            FalconH1Config(
                **_SMALL,
                **_HEADS,
                mamba_d_ssm=32,
                mamba_n_heads=4,
                mamba_d_head=8,
                mamba_d_state=8,
                mamba_chunk_size=16,
            )
        ),
        "qwen3_next": lambda: Qwen3NextForCausalLM(
            Qwen3NextConfig(
                **{**_SMALL, "num_hidden_layers": 4},
                **_HEADS,
                **dict.fromkeys(("linear_num_value_heads", "linear_num_key_heads", "num_experts_per_tok"), 2),
                **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
                **dict.fromkeys(("head_dim", "moe_intermediate_size", "shared_expert_intermediate_size"), 16),
                num_experts=4,
            )
        ),
        "recurrent_gemma": lambda: RecurrentGemmaForCausalLM(
            RecurrentGemmaConfig(**{**_SMALL, "num_hidden_layers": 3}, **_HEADS, lru_width=32, attention_window_size=16)
        ),
        "xlstm": lambda: xLSTMForCausalLM(
            xLSTMConfig(**{**_SMALL, "hidden_size": 128}, embedding_dim=128, num_blocks=2, num_heads=2)
        ),
    }
    return made[name]().eval()


_ENDS = {"bos_token_id": 0, "eos_token_id": 0}

STATE_NUMBERS = {
    # keys and values of 2 layers of width 32
    "gpt2": lambda t: 2 * 2 * t * 32,
    # one head of 16 for keys and values
    "llama": lambda t: 2 * 2 * t * 16,
    # 64 channels with a convolution of 4 and 8 states
    "mamba": lambda t: 2 * 64 * (4 + 8),
    # 64 channels and 8 + 8 for input and output maps through the convolution, 4 heads of 16 by 8
    "mamba2": lambda t: 2 * (80 * 4 + 4 * 16 * 8),
    # five vectors a layer
    "rwkv": lambda t: 2 * 5 * 32,
    # attention as llama, and 32 + 8 + 8 channels of convolution, 4 heads of 8 by 8
    "falcon_h1": lambda t: 2 * (2 * t * 16 + 48 * 4 + 4 * 8 * 8),
    # three layers of the delta rule with 2 heads of 8 by 8, one of attention
    "qwen3_next": lambda t: 3 * (48 * 4 + 2 * 8 * 8) + 2 * t * 16,
    # two recurrent layers with a convolution, and a window that keeps one less than its size
    "recurrent_gemma": lambda t: 2 * (32 * 3 + 32) + 2 * min(t, 15) * 16,
    # heads of 32 keys by 64 values, a normaliser and a stabiliser
    "xlstm": lambda t: 2 * 2 * (32 * 64 + 32 + 1),
}
"""Numbers of the state of each tiny model after t tokens; each takes 4 bytes."""


def induction_head(positions: int = 512) -> PreTrainedModel:
    """A GPT-2 of two layers that copies what followed the last token when it stood in the text before.

    Tokens are rows of a Hadamard matrix, which are orthogonal and sum to zero, so that every layer norm is one factor.
    The first layer attends to the token before, found by its angle on many clocks, and writes its code beside; the
    second looks for the place whose code of the token before is that of the last token, and writes what stands there.
    """
    code, clocks = 64, 32
    hadamard = torch.ones(1, 1)
    while len(hadamard) < code:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    token, place, before = (
        slice(0, code),
        slice(code, code + 4 * clocks),
        slice(code + 4 * clocks, 2 * code + 4 * clocks),
    )
    width = 2 * code + 4 * clocks
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=width, n_layer=2, n_head=1, n_positions=positions, n_inner=8, **_ENDS
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
        transformer = model.transformer
        transformer.wte.weight[:, token] = hadamard[1 : VOCABULARY + 1]
        angles = torch.rand(clocks, generator=torch.Generator().manual_seed(0)) * math.pi
        turns = torch.arange(positions)[:, None] * angles
        circle = torch.cat([turns.cos(), turns.sin()], 1)
        transformer.wpe.weight[:, place] = torch.cat([circle, -circle], 1)
        first, second = (block.attn for block in transformer.h)
        # The query of the first layer is its own angle turned back by one step.
        back = torch.zeros(4 * clocks, 4 * clocks)
        for n, angle in enumerate(angles):
            cos, sin = math.cos(angle), math.sin(angle)
            for start in (n, n + 2 * clocks):
                back[start, start], back[start + clocks, start] = cos, sin
                back[start, start + clocks], back[start + clocks, start + clocks] = -sin, cos
        query, key, value = (slice(n * width, (n + 1) * width) for n in range(3))
        first.c_attn.weight[place, query][:, place] = 40 * back
        first.c_attn.weight[place, key][:, place] = 40 * torch.eye(4 * clocks)
        first.c_attn.weight[token, value][:, token] = torch.eye(code)
        first.c_proj.weight[token, before] = torch.eye(code)
        second.c_attn.weight[token, query][:, token] = 8 * torch.eye(code)
        second.c_attn.weight[before, key][:, token] = 8 * torch.eye(code)
        second.c_attn.weight[token, value][:, token] = torch.eye(code)
        second.c_proj.weight[token, token] = 20 * torch.eye(code)
    return model
