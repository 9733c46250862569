"""What tokenizers do to rows of words: right ids, or a refusal that names the tokenizer or the format."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hf_memory.experiments.probing.formats import FORMATS, Layout, Unit, leading_ids
from hf_memory.experiments.probing.prompts import Case, make_jobs
from hf_memory.experiments.probing.tables import LAWS
from hf_memory.experiments.probing.words import draw_vocabulary, find_pool, needed_words
from tests.experiments.probing.pieces import word_tokenizer, words

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def byte_tokenizer(**options):
    """Byte-level BPE with leading spaces in its tokens, as GPT-2 has it, trained on the words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = [f" {word}" for word in words() for _ in range(9)] + ["Each line below. The answer is:\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<|user|>", "<|end|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def metaspace_tokenizer():
    """Unigrams with a mark for spaces, one of which is put before every text, as Llama has it."""
    names = ["<unk>", "<s>", "▁", ":", "\n", "▁:", *(f"▁{word}" for word in words())]
    tokenizer = Tokenizer(models.Unigram([(name, -float(n)) for n, name in enumerate(names)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("\n", "isolated"),
        pre_tokenizers.Split(":", "isolated"),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
    ])  # fmt: skip
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


def merging_tokenizer():
    """BPE without words: spaces are letters like others, so that frequent neighbours are one token."""
    tokenizer = Tokenizer(models.BPE())
    text = [" ".join(words()[:8])] * 50
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=2000, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("form", ["pairs", "lines"])
@pytest.mark.parametrize("make", [word_tokenizer, byte_tokenizer, metaspace_tokenizer])
def test_every_prompt_has_its_length_and_reads_as_its_words(make, form):
    tokenizer = make()
    layout = Layout(form, tokenizer)
    pool = find_pool(layout, needed_words(8))
    vocabularies = [draw_vocabulary(pool, 8, seed) for seed in range(2)]
    for case in (Case(96, 8), Case(96, 8, 0), Case(128, 4, 32)):
        for job in make_jobs(layout, LAWS["mqar"], vocabularies, case, 2):
            vocabulary = vocabularies[job.cluster]
            for suffix, answer, query, distance in zip(
                job.suffixes, job.answers, job.queries, job.distances, strict=True
            ):
                ids = [*job.prefix, *suffix]
                assert len(ids) == case.length
                key, value = vocabulary.words[query.unit.given[0]], vocabulary.words[query.unit.answer[0]]
                assert tokenizer.decode(suffix).replace(":", "").strip() == key
                assert tokenizer.decode(answer).strip() == value
                asked = len(job.prefix)
                assert ids[asked - distance] == answer[0]
                assert tokenizer.decode(ids[asked - distance - (2 if form == "lines" else 1)]).strip() == key


def test_a_byte_level_row_is_written_as_people_write_it():
    tokenizer = byte_tokenizer()
    layout = Layout("lines", tokenizer)
    pool = find_pool(layout, needed_words(2))
    names, ids = pool.words, pool.ids
    prompt = layout.prompt([Unit((0,), (1,)), Unit((2,), (3,))], [], [4, 5], names, ids)
    text, wanted = layout.whole(prompt, Unit((0,), (1,)), names, ids)
    a, b, c, d, e, f = names[:6]
    assert text == f" {a}: {b}\n {c}: {d}\n {e} {f}\n {a}: {b}"
    assert tokenizer(text)["input_ids"] == wanted
    assert prompt.places == [2, 6]


def test_a_chat_model_is_asked_through_its_template():
    tokenizer = byte_tokenizer(chat_template=TEMPLATE)
    layout = Layout("chat", tokenizer)
    pool = find_pool(layout, needed_words(2))
    prompt = layout.prompt([Unit((0,), (1,))], [], [], pool.words, pool.ids)
    text, wanted = layout.whole(prompt, Unit((0,), (1,)), pool.words, pool.ids)
    a, b = pool.words[:2]
    head = FORMATS["chat"].head
    assert text == f"<|user|>\n{head} {a}: {b}\n {a}:<|end|>\n<|assistant|>\nThe answer is {b}"
    layout.check([(text, wanted)])
    with pytest.raises(ValueError, match="chat template"):
        Layout("chat", byte_tokenizer())


def test_the_id_that_a_tokenizer_puts_before_a_text_comes_first():
    assert leading_ids(word_tokenizer()) == [0]
    assert leading_ids(word_tokenizer(bos=False)) == []
    assert leading_ids(metaspace_tokenizer()) == [1]
    layout = Layout("pairs", word_tokenizer())
    pool = find_pool(layout, needed_words(2))
    assert layout.prompt([Unit((0,), (1,))], [], [], pool.words, pool.ids).prefix == [0, *pool.ids[:2]]


def test_a_tokenizer_with_too_few_words_is_refused():
    with pytest.raises(ValueError, match=r"tokenizer: it has 9 words that are one token each .* and 36 are needed"):
        find_pool(Layout("pairs", word_tokenizer(count=9)), needed_words(16))


def test_a_tokenizer_that_merges_neighbours_is_refused():
    with pytest.raises(ValueError, match="merges neighbours|are needed"):
        find_pool(Layout("pairs", merging_tokenizer()), needed_words(2))


def test_ids_other_than_the_intended_ones_are_refused_with_their_place():
    layout = Layout("pairs", word_tokenizer())
    pool = find_pool(layout, needed_words(2))
    text = " ".join(pool.words[:3])
    layout.check([(text, list(pool.ids[:3]))])
    with pytest.raises(ValueError, match="merges neighbours .* at token 2"):
        layout.check([(text, [*pool.ids[:2], pool.ids[3]])])


def test_a_format_that_a_tokenizer_cannot_write_is_refused():
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words())}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert len(find_pool(Layout("pairs", bare), 10).words) == len(words())
    with pytest.raises(ValueError, match="'lines'"):
        find_pool(Layout("lines", bare), 10)


def test_first_letters_come_in_turn_and_roles_are_balanced():
    pool = find_pool(Layout("pairs", word_tokenizer()), needed_words(8))
    drawn = [draw_vocabulary(pool, 8, seed) for seed in range(8)]
    assert len({vocabulary.words for vocabulary in drawn}) == 8
    for vocabulary in drawn:
        assert len(set(vocabulary.words)) == len(vocabulary.words)
        roles = [[vocabulary.words[n] for n in vocabulary.role(which)] for which in (0, 1)]
        assert [len(words) for words in roles] == [8, 8]
        assert len({word[0] for role in roles for word in role}) == 16
    jobs = make_jobs(Layout_of(pool), LAWS["mqar"], drawn[:1], Case(40, 8), 2)
    keys, values = ({int(n) for n in drawn[0].role(which)} for which in (0, 1))
    assert {query.unit.given[0] for query in jobs[0].queries} <= keys
    assert {query.unit.given[0] for query in jobs[2].queries} <= values


def Layout_of(pool):
    layout = Layout("pairs", word_tokenizer())
    layout.learn(pool.words)
    return layout


def test_one_thing_varies_at_a_time():
    tokenizer = word_tokenizer(bos=False)
    layout = Layout("pairs", tokenizer)
    vocabularies = [draw_vocabulary(find_pool(layout, needed_words(4)), 4, seed) for seed in range(2)]
    law = LAWS["mqar"]
    short, long = (make_jobs(layout, law, vocabularies, Case(length, 4, 5), 2) for length in (40, 80))
    far = make_jobs(layout, law, vocabularies, Case(80, 4), 2)
    assert [job.distances for job in short] == [job.distances for job in long]
    assert [job.queries for job in long] == [job.queries for job in far]
    assert min(min(job.distances) for job in far) == 80 - 1 - 7
    with pytest.raises(ValueError, match="length must be at least 9 for a context of size 4, got 8"):
        make_jobs(layout, law, vocabularies, Case(8, 4), 2)
