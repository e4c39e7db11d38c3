"""Text to tokens on disk: what is read, what is left out, what is refused."""

import builtins
import errno
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings, strategies as st

from mesascope.errors import ArgumentError, MissingPackageError
from mesascope.language import TextWindows, documents, open_corpus, prepare, preparing, shards, tokenizing
from mesascope.language.documents import Piece, Reading, files_of, pieces
from mesascope.language.shards import ShardWriter
from mesascope.language.tokenizing import load_tokenizer
from mesascope.runs.locks import BusyError, locked

TEXTS = [f"document {number}: naïve {'x' * number}\n" for number in range(60)]


def texts_of(path, **how):
    """Whole documents of a file, and what was left out."""
    problems, found = [], []
    for piece in pieces(path, Reading(report=problems.append, **how)):
        if piece.begins:
            found.append("")
        found[-1] += piece.text
    return found, [str(problem).removeprefix(f"{path}:") for problem in problems]


def decoded(corpus, split):
    tokens = np.concatenate(corpus[split]).tolist()
    tokenizer, ends = (
        load_tokenizer(corpus.folder / "tokenizer.json"),
        [i for i, t in enumerate(tokens) if t == corpus.index.end],
    )
    starts = [0, *(end + 1 for end in ends)]
    return [tokenizer.decode(tokens[start:end]) for start, end in zip(starts, ends, strict=False)]


def rows(texts):
    return "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts)


def written(folder, kind):
    path = folder / kind
    if kind == "rows.jsonl":
        path.write_text(rows(TEXTS))
    elif kind == "rows.jsonl.gz":
        path.write_bytes(gzip.compress(rows(TEXTS).encode()))
    elif kind == "rows.jsonl.zst":
        packed = [pa.Codec("zstd").compress(rows(part).encode(), asbytes=True) for part in (TEXTS[:9], TEXTS[9:])]
        path.write_bytes(b"".join(packed))
    elif kind == "table.parquet":
        pyarrow.parquet.write_table(pa.table({"text": TEXTS, "n": range(len(TEXTS))}), path, row_group_size=7)
    elif kind == "data-00000.arrow":
        table = pa.table({"text": TEXTS})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=9)
    else:
        path.write_text("<|doc|>".join(TEXTS))
    return path


@pytest.mark.parametrize(
    "kind", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst", "table.parquet", "data-00000.arrow", "delimited.txt"]
)
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_every_format_gives_the_same_documents_back(kind, tokenizer, tmp_path):
    path = written(tmp_path, kind)
    delimiter = "<|doc|>" if kind.endswith(".txt") else None
    corpus = prepare([path], tmp_path / "out", tokenizer, validation=0.3, delimiter=delimiter, shard=500)
    train, validation = decoded(corpus, "train"), decoded(corpus, "validation")
    assert sorted(train + validation) == sorted(TEXTS)
    assert [text for text in TEXTS if text in set(train)] == train
    assert 5 < len(validation) < 35
    assert corpus.index.splits["train"].documents == len(train)
    assert len(corpus["train"]) == -(-corpus.tokens("train") // 500)
    for split in ("train", "validation"):
        corpus.verify(split)


@settings(max_examples=20, deadline=None)
@given(st.text())
@example("".join(map(chr, range(0x900))))
def test_tokens_of_bytes_are_their_values(text):
    tokenizer = tokenizing.make_tokenizer(tokenizing.TokenizerKind("bytes"), iter(()))
    found = tokenizer.encode(text).ids
    assert found == list(text.encode())
    assert tokenizer.decode(found) == text
    assert tokenizing.end_of_document(tokenizer) == 256


def test_windows_run_over_the_ends_of_shards(tmp_path):
    corpus = prepare([written(tmp_path, "rows.jsonl")], tmp_path / "out", validation=0.3, shard=37)
    whole = np.concatenate(corpus["train"])
    starts = np.array([0, 5, 36, 37, 73, len(whole) - 100])
    expected = np.stack([whole[start : start + 100] for start in starts])
    np.testing.assert_array_equal(corpus.windows("train", starts, 100), expected)


def test_a_copy_of_a_document_is_in_the_same_part(tmp_path):
    (tmp_path / "rows.jsonl").write_text(rows(TEXTS * 2))
    corpus = prepare([tmp_path / "rows.jsonl"], tmp_path / "out", validation=0.3)
    train, validation = decoded(corpus, "train"), decoded(corpus, "validation")
    assert not set(train) & set(validation)
    assert len(train) == 2 * len(set(train))


@pytest.mark.parametrize("size", [1, 7, 64])
def test_long_documents_come_in_pieces_that_make_up_the_whole(size, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", size)
    text = "ä line of text €\nand another, 𝄞, longer than a piece\n" * 5
    (tmp_path / "one.txt").write_text(text)
    (tmp_path / "two.txt").write_text("<cut>".join([text, "second", text]))
    (tmp_path / "rows.jsonl").write_text(rows([text, "second"]))
    assert texts_of(tmp_path / "one.txt") == ([text], [])
    assert texts_of(tmp_path / "two.txt", delimiter="<cut>") == ([text, "second", text], [])
    assert texts_of(tmp_path / "rows.jsonl") == ([text, "second"], [])


def test_rows_longer_than_a_piece_are_one_document_and_lines_are_counted_on(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 16)
    long = "ä" * 9 + "x" * 40
    lines = [row.encode() for row in rows([long, "second", long]).splitlines(keepends=True)]
    lines[1:1] = [lines[0][:30] + b"\xff" + lines[0][30:], b"{\n"]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines))
    found, said = texts_of(tmp_path / "rows.jsonl")
    assert found == [long, "second", long]
    assert [one.split(" (")[0] for one in said] == ["2: not UTF-8", "3: not JSON"]
    (tmp_path / "lines.txt").write_bytes(b"a line longer than a piece of text\nbad \xff\nlast")
    found, said = texts_of(tmp_path / "lines.txt")
    assert found == ["a line longer than a piece of text\nlast"]
    assert said == ["2: not UTF-8 (invalid start byte at byte 4)"]
    pieces_of_rows = list(pieces(tmp_path / "rows.jsonl", Reading()))
    assert max(len(piece.text) for piece in pieces_of_rows) == 16


def test_rows_that_no_text_can_be_made_of_are_left_out(tmp_path):
    lines = ['{"text": "\\ud800"}', f'{{"text": {"9" * 5000}}}', "[" * 10**5, '{"text": "fine"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found, said = texts_of(tmp_path / "a.jsonl")
    assert found == ["fine"]
    assert said[0] == "1: half of a character in 'text'"
    assert said[1].startswith("2: not JSON (Exceeds the limit")
    assert said[2] == "3: not JSON (nested too deeply)"
    (tmp_path / "cut.jsonl.zst").write_bytes(pa.Codec("zstd").compress(rows(TEXTS).encode(), asbytes=True)[:-20])
    assert "not a whole Zstandard file" in texts_of(tmp_path / "cut.jsonl.zst")[1][-1]
    packed = bytearray(gzip.compress(rows(TEXTS).encode()))
    packed[60:80] = bytes(20)
    (tmp_path / "b.jsonl.gz").write_bytes(packed)
    assert "not a whole gzip file" in texts_of(tmp_path / "b.jsonl.gz")[1][-1]
    wrong = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 2, 6], np.int32).tobytes()), pa.py_buffer(b"\xff\xfefine")]
    )
    pyarrow.parquet.write_table(pa.table({"text": wrong}), tmp_path / "c.parquet")
    assert texts_of(tmp_path / "c.parquet") == (["fine"], ["1: not UTF-8 (invalid start byte at byte 0)"])


def test_kinds_of_files_are_told_whatever_the_case_of_their_names(tmp_path):
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(rows(TEXTS).encode()))
    table = pa.table({"text": TEXTS})
    pyarrow.parquet.write_table(table, tmp_path / "B.PARQUET")
    with pa.OSFile(str(tmp_path / "c.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as whole:
        whole.write_table(table, max_chunksize=9)
    for name in ("A.JSONL.GZ", "B.PARQUET", "c.arrow"):
        assert texts_of(tmp_path / name) == (TEXTS, [])


def test_delimiters_are_found_where_two_lines_or_pieces_meet(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 8)
    texts = ["one\n", "two", "three\n\nlines of it", "four"]
    (tmp_path / "text.txt").write_text("\n--\n".join(texts))
    assert texts_of(tmp_path / "text.txt", delimiter="\n--\n") == (texts, [])


def test_broken_lines_are_left_out_and_told_by_file_and_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"text": "good"}\n{"text": \n\n{"other": "x"}\n{"text": 3}\n[1]\n{"text": "fine"}\n'
    )
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfgood\nbad \xff line\nfine\n")
    assert texts_of(tmp_path / "a.jsonl") == (
        ["good", "fine"],
        [
            "2: not JSON (Expecting value)",
            "4: no text in 'text'; other fields: ['other']",
            "5: no text in 'text'",
            "6: no text in 'text'",
        ],
    )
    assert texts_of(tmp_path / "b.txt") == (["good\nfine\n"], ["2: not UTF-8 (invalid start byte at byte 4)"])
    whole = gzip.compress(rows(TEXTS).encode())
    (tmp_path / "c.jsonl.gz").write_bytes(whole[:-20])
    _, said = texts_of(tmp_path / "c.jsonl.gz")
    assert "not a whole gzip file" in said[-1]
    (tmp_path / "d.parquet").write_bytes(b"PAR1 and no more")
    found, (said,) = texts_of(tmp_path / "d.parquet")
    assert found == []
    assert said.startswith("1: not a whole .parquet file (")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.arrow", b""),
        ("a.parquet", b"PAR1 and no more"),
        ("a.txt", "wide".encode("utf-16")),
        ("a.txt", b"ab\0cd"),
        ("a.txt.gz", b"\x1f\x8b and no more"),
        ("a.jsonl", b"{"),
    ],
)
def test_a_damaged_file_is_left_out_of_a_folder_and_counted(name, content, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for index in range(4):
        (folder / f"{index}.txt").write_text(f"document number {index} " * 50)
    whole = prepare([folder], tmp_path / "whole", validation=0.4)
    (folder / name).write_bytes(content)
    corpus = prepare([folder], tmp_path / "out", validation=0.4)
    assert (corpus.index.skipped, corpus.tokens("train")) == (1, whole.tokens("train"))
    with pytest.raises(ArgumentError, match=f"{re.escape(name)} must be readable text, but line 1 is broken"):
        prepare([folder], tmp_path / "refused", broken="refuse")


def test_a_table_that_cannot_be_read_is_not_taken_for_damaged(tmp_path, monkeypatch):
    (tmp_path / "a.arrow").write_bytes(b"ARROW1")
    broken = mock.Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    monkeypatch.setattr(pa, "memory_map", broken)
    with pytest.raises(OSError, match="Input/output error"):
        texts_of(tmp_path / "a.arrow")


def test_zero_bytes_far_into_a_file_are_left_out_with_their_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"letters \n" * 20_000 + b"ab\0cd\n" + b"letters \n")
    assert texts_of(tmp_path / "a.txt")[1] == ["20001: zero bytes"]


def test_broken_lines_are_counted_or_refused(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text(rows(TEXTS) + "{\n" * 30)
    assert prepare([path], tmp_path / "out", "bpe:300", validation=0.3).index.skipped == 30
    said = capsys.readouterr().err
    assert said.count("not JSON") == 20
    assert "more lines" in said
    with pytest.raises(ArgumentError, match=r"rows\.jsonl must be readable text, but line 61 is broken, not JSON"):
        prepare([path], tmp_path / "other", validation=0.3, broken="refuse")


def test_folders_are_read_in_the_order_of_names_and_other_files_left_alone(tmp_path):
    for name in ("b.txt", "a.md", "sub/c.jsonl", "image.png", "about.json", "rows.json.gz", "sub/cache-4f.arrow"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [path.name for path in files_of([tmp_path])] == ["a.md", "b.txt", "c.jsonl"]
    assert files_of([tmp_path / "image.png"]) == [tmp_path / "image.png"]


def test_hidden_files_are_left_out_and_files_named_twice_read_once(tmp_path):
    folder = tmp_path / ".home" / "texts"  # a hidden folder above is no reason
    for name in ("a.txt", "sub/b.txt", "._a.txt", ".git/c.txt", "sub/.ipynb_checkpoints/b-checkpoint.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "c.txt").symlink_to(folder / "a.txt")
    expected = [folder / "a.txt", folder / "sub" / "b.txt"]
    assert files_of([folder]) == expected
    assert files_of([folder / "sub", folder, folder / "a.txt"]) == expected[::-1]
    assert files_of([folder / "._a.txt"]) == [folder / "._a.txt"]


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_ends_of_lines_are_read_as_python_reads_them(size, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", size)
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\nline\r\n\r\ntwo\rlines\r\r\nthree\r\n")
    texts = path.read_text("utf-8-sig").split("\n\n")
    assert len(texts) == 3
    for delimiter in ("\n\n", "\r\n\r\n"):
        assert texts_of(path, delimiter=delimiter) == (texts, [])


def test_a_delimiter_that_is_not_there_is_told(tmp_path, capsys):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("one|two|three")
    prepare([tmp_path / "a.txt"], tmp_path / "one", delimiter="|", validation=0.3)
    assert "delimiter" not in capsys.readouterr().err
    prepare([tmp_path], tmp_path / "two", delimiter="\\n", validation=0.3)
    said = capsys.readouterr().err
    assert f"delimiter '\\\\n' is not in {tmp_path / 'a.txt'}, nor in 1 more: each file is one document" in said


# A long document, a single document, and an interruption


def trained(name, texts):
    """Tokenizers that treat the beginning of a text, its characters, or parts of a word in ways of their own."""
    library = pytest.importorskip("tokenizers")
    models, before, normal = library.models, library.pre_tokenizers, library.normalizers
    plain = {"vocab_size": 300, "special_tokens": ["<unk>", tokenizing.END], "show_progress": False}
    model, normalizer, splitter = {
        "metaspace": (models.BPE(unk_token="<unk>"), None, before.Metaspace()),
        "first": (models.BPE(unk_token="<unk>"), None, before.Metaspace(prepend_scheme="first", split=False)),
        "nfc": (models.BPE(unk_token="<unk>"), normal.NFC(), before.ByteLevel()),
        "unigram": (models.Unigram(), normal.Sequence([normal.NFKC(), normal.Strip()]), before.Metaspace()),
        "wordpiece": (models.WordPiece(unk_token="<unk>"), normal.BertNormalizer(), before.BertPreTokenizer()),
    }[name]
    tokenizer = library.Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    makers = library.trainers
    maker = {
        "unigram": lambda: makers.UnigramTrainer(unk_token="<unk>", **plain),
        "wordpiece": lambda: makers.WordPieceTrainer(**plain),
    }.get(name, lambda: makers.BpeTrainer(max_token_length=8, **plain))()
    tokenizer.train_from_iterator(texts, maker)
    return tokenizer


@pytest.mark.parametrize("name", ["metaspace", "first", "nfc", "unigram", "wordpiece"])
def test_tokens_of_a_long_document_are_those_of_the_whole(name, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 3001)
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice([*"abcdeé-'", "e\u0301"], size)) for size in generator.integers(1, 9, 60)]
    texts = [" ".join(generator.choice(words, 4000)), "b" * 9000, "short", "e\u0301" * 5000 + "\n " * 2000]
    tokenizer = trained(name, [texts[0][:9000]])
    cut = [Piece(text[start : start + 3001], start == 0) for text in texts for start in range(0, len(text), 3001)]
    found, parts = [[]], 0
    for part in tokenizing.encoded(tokenizer, [cut[start : start + 2] for start in range(0, len(cut), 2)]):
        found[-1] += part.tokens.tolist()
        found += [[]] if part.ends else []
        parts += 1
    assert found[:-1] == [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert parts > len(texts) + 4  # so that the first was cut


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("shard", [1 << 20, 64])
def test_few_documents_in_one_part_are_split_by_position(count, part, shard, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(preparing, "_split", lambda text, share: part)
    (tmp_path / "text.txt").write_text("|".join(["the text of a book " * 20] * count))
    corpus = prepare([tmp_path / "text.txt"], tmp_path / "out", delimiter="|", validation=0.1, shard=shard)
    whole = np.concatenate([*corpus["train"], *corpus["validation"]])
    words = load_tokenizer(corpus.folder / "tokenizer.json").encode("the text of a book " * 20).ids
    assert whole.tolist() == [*words, corpus.index.end] * count
    assert corpus.tokens("validation") == round(0.1 * 381 * count)
    assert [corpus.index.splits[split].documents for split in ("train", "validation")] == [count, 1]
    assert f"validation: the last {corpus.tokens('validation')} of {381 * count:,} tokens" in capsys.readouterr().err
    for split in ("train", "validation"):
        corpus.verify(split)


def same_files(one, other):
    read = {path.name: path.read_bytes() for path in one.iterdir()}
    return read == {path.name: path.read_bytes() for path in other.iterdir()}


def two_files(folder):
    folder.mkdir()
    (folder / "a.jsonl").write_text(rows(TEXTS[:30]) + "{\n")
    (folder / "b.txt").write_text("|".join([*TEXTS[30:], "long " * 300]))
    return folder


@pytest.mark.parametrize(("stop", "after"), [(KeyboardInterrupt, 2), (OSError, 75), (KeyboardInterrupt, 110)])
def test_an_interrupted_preparation_goes_on_to_the_same_bytes(stop, after, tmp_path, monkeypatch):
    for module, name, value in (
        (preparing, "_KEPT_EVERY", 100), (preparing, "_AT_ONCE", 200), (documents, "PIECE", 300)
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    given = {
        "paths": [two_files(tmp_path / "texts")],
        "tokenizer": "bpe:270",
        "validation": 0.3,
        "delimiter": "|",
        "shard": 150,
    }
    whole = prepare(out=tmp_path / "whole", **given)
    write, calls = ShardWriter.write, []

    def stopped(writer, tokens):
        calls.append(1)
        if len(calls) == after:
            raise stop
        write(writer, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "write", stopped)
        with pytest.raises(stop):
            prepare(out=tmp_path / "out", **given)
    assert (tmp_path / "out" / "progress.json").exists() == (after > 2)
    with monkeypatch.context() as patch:
        encoded, read = preparing.encoded, []
        patch.setattr(
            preparing, "encoded", lambda words, batches: encoded(words, (read.append(b) or b for b in batches))
        )
        assert prepare(out=tmp_path / "out", **given).index == whole.index
    assert same_files(tmp_path / "out", tmp_path / "whole")
    assert (sum(map(len, read)) < 50) == (after > 2)


def test_shards_of_another_writer_are_moved_behind_those_of_this_one(tmp_path):
    writers = [ShardWriter(tmp_path, split, "uint16", 3) for split in ("train", "validation")]
    for writer, tokens in zip(writers, (np.arange(4), np.arange(4, 9)), strict=True):
        writer.write(tokens)
        writer.documents += 1
        writer.close()
    train, held = writers
    train.adopt(held)
    assert (train.record().tokens, train.documents, held.record().tokens, held.documents) == (9, 2, 0, 0)
    assert train.take(9).tolist() == [*range(9)]
    assert not any(tmp_path.iterdir())


def test_a_killed_preparation_goes_on_to_the_same_bytes(tmp_path):
    texts = two_files(tmp_path / "texts")
    call = f"prepare([{str(texts)!r}], {str(tmp_path / 'out')!r}, 'bpe:270', validation=0.3, delimiter='|')"
    program = f"""
import os, signal
from mesascope.language import preparing
from mesascope.language.preparing import prepare
from mesascope.language.shards import ShardWriter
preparing._KEPT_EVERY, preparing._AT_ONCE = 1, 200
write, calls = ShardWriter.write, []
def killed(writer, tokens):
    calls.append(1)
    if len(calls) == 60:
        os.kill(os.getpid(), signal.SIGKILL)
    write(writer, tokens)
ShardWriter.write = killed
{call}
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    kept = json.loads((tmp_path / "out" / "progress.json").read_text())
    assert sum(split["documents"] for split in kept["splits"].values()) > 20
    for change, message in (
        ({"validation": 0.2}, "out must not hold an unfinished corpus of other files or settings"),
    ):
        with pytest.raises(ArgumentError, match=message):
            prepare([texts], tmp_path / "out", "bpe:270", delimiter="|", **change)
    given = {"tokenizer": "bpe:270", "validation": 0.3, "delimiter": "|"}
    prepare([texts], tmp_path / "out", **given)
    prepare([texts], tmp_path / "whole", **given)
    assert same_files(tmp_path / "out", tmp_path / "whole")


def test_words_are_cut_so_that_training_pairs_takes_time_by_the_length_of_the_text(tmp_path):
    (tmp_path / "long.txt").write_text("a" * 400_000)
    start = time.process_time()
    corpus = prepare([tmp_path / "long.txt"], tmp_path / "out", "bpe:500")
    assert time.process_time() - start < 10
    tokens = np.concatenate([*corpus["train"], *corpus["validation"]])
    text = load_tokenizer(corpus.folder / "tokenizer.json").decode(tokens.tolist())
    assert text == "a" * 400_000
    assert len(tokens) == 400_000 // 64 + 1


def test_what_is_no_text_is_refused_by_name_and_rows_are_rows(tmp_path):
    (tmp_path / "rows.jsonl.bz2").write_bytes(b"BZh9\x00 packed otherwise")
    with pytest.raises(ArgumentError, match=r"has none \(line 1 of rows\.jsonl\.bz2: zero bytes, so the whole file is"):
        prepare([tmp_path / "rows.jsonl.bz2"], tmp_path / "out")
    (tmp_path / "wide.txt").write_text("text", "utf-16")
    with pytest.raises(ArgumentError, match=r"has none \(line 1 of wide\.txt: in UTF-16, not in UTF-8"):
        prepare([tmp_path / "wide.txt"], tmp_path / "out")
    (tmp_path / "c4.json.gz").write_bytes(gzip.compress(rows(TEXTS).encode()))
    assert texts_of(tmp_path / "c4.json.gz") == (TEXTS, [])


def test_a_damaged_group_of_rows_is_left_out_and_told_by_its_first_row(tmp_path):
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(pa.table({"text": TEXTS}), path, row_group_size=10, compression="gzip")
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(2).column(0)
    data, start = bytearray(path.read_bytes()), column.data_page_offset
    data[start : start + column.total_compressed_size // 2] = bytes(column.total_compressed_size // 2)
    path.write_bytes(data)
    found, said = texts_of(path)
    assert found == TEXTS[:20] + TEXTS[30:]
    assert [one.split(" (")[0] for one in said] == ["21: not a whole row group"]
    with pytest.raises(ArgumentError, match="line 21 is broken, not a whole row group"):
        prepare([path], tmp_path / "out", validation=0.3, broken="refuse")


def test_a_tokenizer_of_somebody_else_is_not_written_over(tmp_path):
    (tmp_path / "tokenizer.json").write_text("theirs")
    with pytest.raises(ArgumentError, match=r"out must be a folder without a corpus or a tokenizer\.json"):
        prepare([written(tmp_path, "rows.jsonl")], tmp_path, validation=0.3)
    assert (tmp_path / "tokenizer.json").read_text() == "theirs"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paths": ["nowhere.txt"]}, "paths must exist, but is 'nowhere.txt': name files or folders"),
        ({"paths": "text.txt"}, "paths must be a list, but is 'text.txt'"),
        ({"tokenizer": "bpe:12"}, "tokenizer must be bpe:VOCABULARY with 257 to 16777216 tokens, but is 'bpe:12'"),
        ({"tokenizer": "bpe:lots"}, "tokenizer must be bpe:VOCABULARY"),
        ({"tokenizer": "bpe:" + "9" * 5000}, "tokenizer must be bpe:VOCABULARY"),
        ({"tokenizer": "words"}, "tokenizer must be bytes, bpe:VOCABULARY or a file, but is 'words'"),
        ({"validation": 0.9}, "validation must be at most 0.5"),
        (
            {"validation": 1e-9},
            r"validation must be at least one of the 3,080 tokens, but is 1e-09: pass a larger share",
        ),
        ({"broken": "keep"}, "broken must be one of 'refuse', 'skip'"),
        (
            {"field": "body"},
            r"paths must hold text, but the file has none \(line 1 of rows.jsonl: no text in 'body'; other fields: "
            r"\['text', 'id'\]\): name the field that holds it \(--field\)",
        ),
        ({"delimiter": ""}, "delimiter must have at least one character"),
        ({"shard": 0}, "shard must be at least 1"),
    ],
)
def test_what_cannot_be_prepared_is_refused_in_a_sentence(change, message, tmp_path):
    given = {"paths": [written(tmp_path, "rows.jsonl")], "validation": 0.3} | change
    with pytest.raises(ArgumentError, match=message):
        prepare(out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("package", "name"), [("tokenizers", "rows.jsonl"), ("pyarrow.parquet", "table.parquet")])
def test_a_missing_package_leaves_no_folder(package, name, tmp_path, monkeypatch):
    file = written(tmp_path, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError):
        prepare([file], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_text_at_all_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="paths must name at least one file or folder"):
        prepare([], tmp_path / "out")
    (tmp_path / "empty.txt").write_text(" \n\n")
    with pytest.raises(ArgumentError, match="paths must hold text, but the file has none"):
        prepare([tmp_path / "empty.txt"], tmp_path / "out")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArgumentError, match="paths must hold files of text"):
        prepare([tmp_path / "folder"], tmp_path / "out")
    with pytest.raises(ArgumentError, match=r"no text in 'body'; other fields: .*: name the field that holds it"):
        prepare([written(tmp_path, "table.parquet")], tmp_path / "out", field="body")


def test_a_tokenizer_file_is_taken_as_it_is(tmp_path):
    first = prepare([written(tmp_path, "rows.jsonl")], tmp_path / "out", "bpe:300", validation=0.3)
    again = prepare([tmp_path / "rows.jsonl"], tmp_path / "again", first.folder / "tokenizer.json", validation=0.3)
    assert again.index.tokenizer == first.index.tokenizer
    np.testing.assert_array_equal(again["train"][0], first["train"][0])
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"bad\.json must be a tokenizer\.json of the tokenizers library"):
        prepare([tmp_path / "rows.jsonl"], tmp_path / "bad", tmp_path / "bad.json")
    bare = json.loads((first.folder / "tokenizer.json").read_text().replace(tokenizing.END, "<none>"))
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    with pytest.raises(ArgumentError, match="tokenizer must have a token for the end of a document, but has none of"):
        prepare([tmp_path / "rows.jsonl"], tmp_path / "bare", tmp_path / "bare.json")


def test_a_tokenizer_that_cuts_and_pads_for_a_model_cuts_and_pads_nothing_here(tmp_path):
    first = prepare([written(tmp_path, "rows.jsonl")], tmp_path / "out", "bpe:300", validation=0.3)
    for name in ("cuts", "pads"):
        tokenizer = load_tokenizer(first.folder / "tokenizer.json")
        if name == "cuts":
            tokenizer.enable_truncation(5)
        else:
            tokenizer.enable_padding(length=100)
        tokenizer.save(str(tmp_path / f"{name}.json"))
        again = prepare([tmp_path / "rows.jsonl"], tmp_path / name, tmp_path / f"{name}.json", validation=0.3)
        np.testing.assert_array_equal(again["train"][0], first["train"][0])


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_what_looks_like_the_end_of_a_document_is_text(tokenizer, tmp_path):
    texts = [f"{number} {tokenizing.END} more" for number in range(40)]
    (tmp_path / "rows.jsonl").write_text(rows(texts))
    corpus = prepare([tmp_path / "rows.jsonl"], tmp_path / "out", tokenizer, validation=0.3)
    assert sorted(decoded(corpus, "train") + decoded(corpus, "validation")) == sorted(texts)


def test_a_vocabulary_reaches_to_the_largest_of_its_numbers(tmp_path):
    words = {"type": "WordLevel", "vocab": {"document": 70_000, tokenizing.END: 3, "?": 0}, "unk_token": "?"}
    (tmp_path / "words.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))
    corpus = prepare([written(tmp_path, "rows.jsonl")], tmp_path / "out", tmp_path / "words.json", validation=0.3)
    assert (corpus.index.vocabulary, corpus.index.dtype) == (70_001, "uint32")


def test_a_corpus_that_is_not_whole_is_refused(tmp_path):
    whole = prepare([written(tmp_path, "rows.jsonl")], tmp_path / "whole", validation=0.3, shard=500).folder
    with pytest.raises(ArgumentError, match=r"out must be a folder without a corpus or a tokenizer\.json, but is"):
        prepare([tmp_path / "rows.jsonl"], whole)

    def damaged(name, change):
        folder = tmp_path / name
        shutil.copytree(whole, folder)
        change(folder)
        return folder

    def shorter(folder):
        path = folder / "train-00001.bin"
        path.write_bytes(path.read_bytes()[:-2])

    def other(folder):
        path = folder / "train-00001.bin"
        path.write_bytes(bytes(reversed(path.read_bytes())))

    def reindexed(**changes):
        def change(folder):
            path = folder / "index.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))

        return change

    def recounted(folder):
        splits = json.loads((folder / "index.json").read_text())["splits"]
        splits["train"]["tokens"] += 1
        reindexed(splits=splits)(folder)

    def retokenized(folder):
        (folder / "tokenizer.json").write_text("{}")

    for name, change, message in (
        ("missing", lambda folder: (folder / "train-00000.bin").unlink(), "must have 500 tokens, .* but is missing"),
        ("short", shorter, "must have 500 tokens, as in the index, but has 499: prepare the text anew"),
        ("tokenizer", retokenized, "tokenizer.json must be the tokenizer of the index, but is not"),
        (
            "index",
            lambda folder: (folder / "index.json").write_text('{"schema": 1}'),
            "must be an index of tokens, but",
        ),
        ("nothing", lambda folder: (folder / "index.json").unlink(), "corpus must be a folder with index.json"),
        ("empty", reindexed(splits={}), "must be an index of tokens, but has numbers that do not agree"),
        ("end", reindexed(end=257), "must be an index of tokens, but has numbers that do not agree"),
        ("more", recounted, "must be an index of tokens, but has numbers that do not agree"),
    ):
        with pytest.raises(ArgumentError, match=message):
            open_corpus(damaged(name, change))
    changed = open_corpus(damaged("changed", other))
    changed.verify("validation")
    with pytest.raises(ArgumentError, match="must have its checksum in the index, but has another"):
        TextWindows(str(changed.folder), 20)
    with pytest.raises(ArgumentError, match="must hold tokens below 257, but holds"):
        changed.windows("train", np.array([500]), 500)


def test_shards_are_read_by_the_first_start_alone_until_they_change(tmp_path, monkeypatch):
    corpus = prepare([written(tmp_path, "rows.jsonl")], tmp_path / "out", validation=0.3, shard=500)
    names, read = [shard.file for shard in corpus.index.splits["train"].shards], []
    digest = hashlib.file_digest

    def noted(file, kind):
        read.append(Path(file.name).name)
        return digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", noted)

    def started():
        """The files that a new process reads."""
        shards._known_digest.cache_clear()
        read.clear()
        open_corpus(corpus.folder).verify("train")
        return [name for name in read if name != "tokenizer.json"]

    assert started() == names
    assert started() == []
    path = corpus.folder / names[1]
    os.utime(path, ns=(0, 0))
    assert started() == [names[1]]
    (corpus.folder / "checked.json").write_text("{")
    assert started() == names
    path.write_bytes(bytes(reversed(path.read_bytes())))
    with pytest.raises(ArgumentError, match="must have its checksum in the index, but has another"):
        started()
    shutil.copytree(corpus.folder, tmp_path / "locked")
    monkeypatch.setattr(shards, "replacing", mock.Mock(side_effect=PermissionError))
    for _ in range(2):
        shards._known_digest.cache_clear()
        open_corpus(tmp_path / "locked").verify("validation")


@pytest.mark.parametrize("kept", [None, 1 << 20])
def test_a_full_disk_names_the_file_and_leaves_no_index(kept, tmp_path, monkeypatch):
    """The error may come at once, or later, when buffered bytes are written."""
    path, opened = written(tmp_path, "rows.jsonl"), io.open

    class Full(io.FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(file, mode="r", *rest, **named):
        raw = lambda: Full(file, "w") if kept is None else io.BufferedWriter(Full(file, "w"), kept)  # noqa: E731
        return raw() if str(file).endswith(".bin") else opened(file, mode, *rest, **named)

    monkeypatch.setattr(io, "open", full)
    monkeypatch.setattr(builtins, "open", full)
    with pytest.raises(OSError, match="No space left") as error:
        prepare([path], tmp_path / "out", validation=0.3)
    assert str(error.value.filename).endswith(".bin")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif("MESASCOPE_DATA" not in os.environ, reason="MESASCOPE_DATA is not set")
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:500"])
def test_real_texts_are_decoded_from_their_tokens(tmp_path, tokenizer):
    file = Path(os.environ["MESASCOPE_DATA"]) / "text" / "tinyshakespeare.txt"
    corpus = prepare([file], tmp_path / "corpus", tokenizer, delimiter="\n\n", validation=0.1)
    speeches = sorted(file.read_text().split("\n\n"))
    assert len(speeches) > 7000
    assert sorted(decoded(corpus, "train") + decoded(corpus, "validation")) == speeches


def test_two_processes_do_not_write_one_corpus(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS))
    (tmp_path / "tokens").mkdir()
    with locked(tmp_path / "tokens"), pytest.raises(BusyError, match="must be written by one process at a time"):
        prepare([tmp_path / "text.txt"], tmp_path / "tokens")
    prepare([tmp_path / "text.txt"], tmp_path / "tokens")
    assert not (tmp_path / "tokens" / ".lock").exists()
