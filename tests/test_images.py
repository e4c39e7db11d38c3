"""Sets of images are read as they are, or refused in a sentence; few-shot tasks hold what they say."""

import contextlib
import gzip
import hashlib
import os
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import tiny_study
import torch
from PIL import Image

from mesascope.data import cache_folder, images
from mesascope.data.arrays import images_of
from mesascope.data.files import DownloadError, Source, found
from mesascope.data.folders import visible_files
from mesascope.data.image_sets import _images
from mesascope.errors import ArgumentError, RunDirectoryError
from mesascope.runs import open_run
from mesascope.streams import stream
from mesascope.studies import new_run
from mesascope.studies.lab import Lab
from mesascope.tasks import FewShotArrays, FewShotImages

REAL = os.environ.get("MESASCOPE_DATA")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of data, and an empty cache beside it."""
    monkeypatch.setenv("MESASCOPE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("MESASCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    _images.cache_clear()
    yield tmp_path / "data"
    _images.cache_clear()


def classes_of(x, dataset):
    """The class of each row of pixels, and its place, by looking it up."""
    table = {bytes(row.flatten().tolist()): place for place, row in enumerate(dataset.pixels)}
    places = [table[bytes((row * 255).round().byte().tolist())] for row in x]
    return [int(dataset.labels[place]) for place in places], places


@pytest.mark.parametrize(("ways", "shots", "queries"), [(2, 1, 1), (5, 3, 4), (10, 1, 2)])
def test_a_task_holds_so_many_images_of_each_class_and_none_twice(ways, shots, queries):
    dataset = images("digits")
    family = FewShotImages(ways=ways, shots=shots, queries=queries)
    episode = family.sample(3, stream(0, "images"))
    numbered = []
    for x, y, xq, yq in zip(*episode.context, episode.xq, episode.yq, strict=True):
        assert y.sum(0).tolist() == [shots] * ways
        assert yq.sum(0).tolist() == [queries] * ways
        found_classes, places = classes_of(torch.cat([x, xq]), dataset)
        assert len(set(places)) == len(places)
        numbers = torch.cat([y, yq]).argmax(-1).tolist()
        pairs = set(zip(numbers, found_classes, strict=True))
        assert len(pairs) == ways
        assert len({one for _, one in pairs}) == ways
        numbered.append(sorted(pairs))
    assert len({tuple(one) for one in numbered}) > 1  # classes are numbered anew in each task
    assert not torch.equal(episode.context.y[0], episode.context.y[0].sort(0).values)  # and their order is random


def test_turned_images_are_classes_of_their_own():
    family = FewShotImages(ways=20, shots=1, queries=2, rotations=True)
    episode = family.sample(1, stream(0, "turned"))
    table = {}
    for turn in range(4):
        for row, label in zip(images("digits").pixels, images("digits").labels, strict=True):
            table.setdefault(bytes(row.rot90(turn, (-2, -1)).flatten().tolist()), set()).add((int(label), turn))
    x, y = torch.cat([episode.context.x, episode.xq], 1)[0], torch.cat([episode.context.y, episode.yq], 1)[0]
    kinds = {}
    for row, number in zip(x, y.argmax(-1).tolist(), strict=True):
        kinds.setdefault(number, []).append(table[bytes((row * 255).round().byte().tolist())])
    chosen = [set.intersection(*own) for own in kinds.values()]
    assert all(len(own) == 1 for own in chosen)
    assert len({next(iter(own)) for own in chosen}) == 20


def test_parts_share_no_image_and_sizes_are_those_asked_for():
    train, test = (images("digits", part).pixels for part in ("train", "test"))
    assert len(train) + len(test) == 1797
    assert images("digits", size=28).pixels.shape == (len(train), 1, 28, 28)
    assert FewShotImages(size=14).sample(1, stream(0, "size")).xq.shape[-1] == 14 * 14


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ways": 11}, "ways must be at most 10, the classes of digits, but is 11"),
        ({"shots": 120}, "shots must be at most .* together with queries, the images of class 4, but is"),
        ({"part": "validation"}, "part must be train or test for digits, but is 'validation'"),
    ],
)
def test_a_task_that_a_dataset_cannot_give_is_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        FewShotImages(**arguments).sample(1, stream(0, "refused"))


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(header + array.tobytes())


def test_idx_files_are_read(folder):
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    (folder / "mnist").mkdir()
    files = {"train-images-idx3": pixels, "train-labels-idx1": np.array([7, 1], np.uint8),
             "t10k-images-idx3": pixels + 1, "t10k-labels-idx1": np.array([0, 9], np.uint8)}  # fmt: skip
    for name, array in files.items():
        (folder / "mnist" / f"{name}-ubyte.gz").write_bytes(idx(array))
    assert images("mnist").pixels.flatten().tolist() == list(range(18))
    assert images("mnist", "test").labels.tolist() == [0, 9]
    whole = idx(pixels)
    for content in (b"<html>", whole[:12] + bytes(8) + whole[20:]):
        (folder / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(content)
        _images.cache_clear()
        with pytest.raises(ArgumentError, match="must be a gzipped idx file of bytes, but is not: restore it"):
            images("mnist")
    (folder / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(idx(np.array([0, 10], np.uint8)))
    _images.cache_clear()
    with pytest.raises(ArgumentError, match="must hold images and as many labels of ten classes"):
        images("mnist", "test")


def picture(path, shade, size=6):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), shade, np.uint8)).save(path)


def test_drawings_of_omniglot_are_read_in_their_alphabets(folder):
    (folder / "omniglot").mkdir()
    for name in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(folder / "omniglot" / f"{name}.zip", "w") as archive:
            for place, character in enumerate(("A/character01", "A/character02", "B/character01")):
                picture(folder / "one.png", 255 if place else 0)
                archive.write(folder / "one.png", f"{name}/{character}/0001_01.png")
    read = images("omniglot")
    assert read.classes == ("A/character01", "A/character02", "B/character01")
    assert read.pixels[:, 0, 0, 0].tolist() == [255, 0, 0]  # ink is white


def test_alphabets_for_training_are_not_those_for_test(folder):
    picture(folder / "one.png", 0)
    (folder / "omniglot").mkdir()
    for name, alphabet in (("images_background", "A"), ("images_evaluation", "B")):
        with zipfile.ZipFile(folder / "omniglot" / f"{name}.zip", "w") as archive:
            archive.write(folder / "one.png", f"{name}/{alphabet}/character01/0001_01.png")
    assert [images("omniglot", part).classes for part in ("train", "test")] == [("A/character01",), ("B/character01",)]


def test_pictures_of_a_folder_are_read_by_table_and_by_class(folder):
    for place, (name, label) in enumerate((("a.png", "cat"), ("b.jpg", "dog"), ("in/c.png", "cat"))):
        picture(folder / "mine" / "images" / name, 100 * place)
        with (folder / "mine" / "train.csv").open("a") as file:
            file.write(("filename, label\n" if place == 0 else "") + f"{name}, {label}\n")
    by_table = images("mine", "train", size=4)
    assert by_table.classes == ("cat", "dog")
    assert by_table.labels.tolist() == [0, 1, 0]
    assert by_table.pixels.shape == (3, 3, 4, 4)
    assert by_table.pixels[:, 0, 0, 0].tolist() == pytest.approx([0, 100, 200], abs=3)
    picture(folder / "other" / "valid" / "dog" / "1.png", 50)
    picture(folder / "other" / "valid" / "cat" / "1.png", 150)
    by_class = images("other", "validation")
    assert by_class.classes == ("cat", "dog")
    assert by_class.pixels[:, 0, 0, 0].tolist() == [150, 50]
    assert by_class.pixels.shape == (2, 3, 6, 6)  # as they are


def test_parts_of_a_folder_are_of_one_kind_and_share_no_picture(folder):
    picture(folder / "mine" / "train" / "cat" / "1.png", 10)
    picture(folder / "mine" / "test" / "dog" / "1.png", 20, size=7)
    with pytest.raises(ArgumentError, match=r"size must be given unless .* 7 x 7 in colour"):
        images("mine")
    Image.new("L", (6, 6)).save(folder / "mine" / "train" / "cat" / "1.png")
    assert images("mine", size=4).pixels.shape == images("mine", "test", size=4).pixels.shape == (1, 3, 4, 4)
    picture(folder / "tables" / "images" / "a.png", 10)
    for part in ("train", "val"):
        (folder / "tables" / f"{part}.csv").write_text("filename,label\na.png,cat\n")
    with pytest.raises(ArgumentError, match=r"must have each picture in one part, but has .*a\.png in several"):
        images("tables")


def test_what_was_decoded_is_kept_until_a_file_changes(folder):
    picture(folder / "mine" / "train" / "cat" / "1.png", 10)
    assert images("mine", size=4).pixels.unique().tolist() == [10]
    kept = list((cache_folder() / "decoded").iterdir())
    assert len(kept) == 1
    _images.cache_clear()
    assert images("mine", size=4).pixels.unique().tolist() == [10]
    assert list((cache_folder() / "decoded").iterdir()) == kept
    picture(folder / "mine" / "train" / "cat" / "1.png", 200, size=7)
    _images.cache_clear()
    assert images("mine", size=4).pixels.unique().tolist() == [200]
    picture(folder / "mine" / "train" / "cat" / "2.png", 90)  # within one process, too
    assert images("mine", size=4).pixels[:, 0, 0, 0].tolist() == [200, 90]


def test_a_folder_that_is_laid_out_otherwise_is_refused(folder):
    with pytest.raises(ArgumentError, match=r"dataset must be digits, mnist, .* or a folder, but there is no .*mine"):
        images("mine")
    (folder / "mine").mkdir()
    with pytest.raises(ArgumentError, match=r"mine must have train.csv .* but has none of them"):
        images("mine")
    (folder / "mine" / "train.csv").write_text("picture,class\na.png,cat\n")
    with pytest.raises(ArgumentError, match="must have the columns filename and label"):
        images("mine")
    (folder / "mine" / "train.csv").write_text("filename,label\na.png,cat\nb.png,cat\n")
    with pytest.raises(ArgumentError, match=r"must hold what train.csv lists, but lacks a.png and 1 more"):
        images("mine")
    (folder / "mine" / "images").mkdir()
    for name in ("a.png", "b.png"):
        (folder / "mine" / "images" / name).write_text("no picture")
    with pytest.raises(ArgumentError, match=r"a.png must be a picture, but is not"):
        images("mine")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (b"filename,label\na.png,cat\na.png,dog\n", "row 3 lists a.png again: mend it"),
        (b"filename,label\na.png,cat\nb.png\n", "row 3 lacks one of them"),
        (b"filename,label\na.png,\n", "row 2 lacks one of them"),
        (b"filename,label\n\xe9.png,cat\n", "must be a table in UTF-8, but is not"),
    ],
)
def test_a_table_with_a_row_that_names_no_picture_of_its_own_is_refused(folder, table, message):
    picture(folder / "mine" / "images" / "a.png", 10)
    (folder / "mine" / "train.csv").write_bytes(table)
    with pytest.raises(ArgumentError, match=message):
        images("mine")
    (folder / "mine" / "train.csv").write_bytes(b"\xef\xbb\xbffilename,label\na.png,cat\n")  # as Excel saves it
    assert images("mine", size=4).classes == ("cat",)


def test_a_cache_that_is_damaged_or_cannot_be_written_is_done_without(folder, monkeypatch):
    picture(folder / "mine" / "train" / "cat" / "1.png", 10)
    expected = images(str(folder / "mine"), size=4).pixels
    (kept,) = (cache_folder() / "decoded").iterdir()  # and nothing beside the pictures
    whole = kept.read_bytes()
    for content in (b"damaged", whole[:-1] + bytes([whole[-1] ^ 1])):
        kept.write_bytes(content)
        _images.cache_clear()
        assert torch.equal(images(str(folder / "mine"), size=4).pixels, expected)
    (folder / "file").write_text("no folder")
    monkeypatch.setenv("MESASCOPE_CACHE", str(folder / "file"))
    _images.cache_clear()
    with pytest.warns(UserWarning, match="cannot be written .*: set MESASCOPE_CACHE to a writable folder"):
        assert torch.equal(images(str(folder / "mine"), size=4).pixels, expected)


RED, GREY = (255, 0, 0), 64


def kind_of_picture(name):
    """A 2 x 2 picture of one kind, red or grey, with a white lower row, and the options that it is saved with."""
    from PIL.Image import Exif, fromarray, new

    shades = np.array([[GREY, GREY], [255, 255]], np.uint8)
    colours = np.array([[RED, RED], [(255,) * 3] * 2], np.uint8)
    clear = np.array([[255, 255], [0, 0]], np.uint8)  # the lower row of these is black under nothing
    black = shades * (clear > 0)
    turned = Exif()
    turned[0x112] = 3
    palette = new("P", (2, 2))
    palette.putpalette([*RED, 255, 255, 255])
    palette.putdata([0, 0, 1, 1])
    return {
        "grey": (fromarray(shades), {}),
        "16 bits": (fromarray(shades.astype(np.uint16) * 256 + 200), {}),
        "grey and clear": (fromarray(np.stack([black, clear], -1), "LA"), {}),
        "grey, upside down": (fromarray(shades[::-1].copy()), {"exif": turned}),
        "colour": (fromarray(colours), {}),
        "colour and clear": (fromarray(np.concatenate([colours * (clear[..., None] > 0), clear[..., None]], -1)), {}),
        "grey palette": (fromarray(shades).convert("P"), {}),
        "palette": (palette, {}),
        "palette and clear": (palette, {"transparency": 1}),
        "colour, upside down": (fromarray(colours[::-1].copy()), {"exif": turned}),
    }[name]


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
@pytest.mark.parametrize(
    "name",
    [*("grey", "16 bits", "grey and clear", "grey, upside down", "grey palette"),
     *("colour", "colour and clear", "palette", "palette and clear", "colour, upside down")],
)  # fmt: skip
def test_a_picture_of_any_kind_is_read_as_viewers_show_it(folder, name):
    picture, options = kind_of_picture(name)
    path = folder / "mine" / "train" / "cat" / "1.png"
    path.parent.mkdir(parents=True)
    picture.save(path, **options)
    top = (GREY,) if name.startswith(("grey", "16")) else RED
    pixels = images("mine").pixels
    assert pixels.shape == (1, len(top), 2, 2)
    assert pixels[0, :, 0].T.tolist() == [[*top]] * 2
    assert pixels[0, :, 1].unique().tolist() == [255]


def test_a_photograph_is_turned_as_its_camera_says_and_cmyk_becomes_colour(folder):
    picture(folder / "mine" / "train" / "cat" / "1.png", 0)
    exif = Image.Exif()
    exif[0x112] = 6  # turn by 90 degrees clockwise
    left = np.zeros((16, 16, 3), np.uint8)
    left[:, :8] = 255
    Image.fromarray(left).save(folder / "mine" / "train" / "cat" / "2.jpg", exif=exif)
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(folder / "mine" / "train" / "cat" / "3.jpg")
    _, turned, red = images("mine", size=16).pixels.float()
    assert turned[:, :8].mean() > 250
    assert turned[:, 8:].mean() < 5
    assert red.mean((1, 2)).tolist() == pytest.approx(RED, abs=3)


def test_pictures_that_differ_are_not_taken_as_they_are_without_a_size(folder):
    picture(folder / "mine" / "train" / "cat" / "1.png", 10)
    Image.fromarray(np.full((6, 6), 40, np.uint8)).save(folder / "mine" / "train" / "cat" / "2.png")
    with pytest.raises(
        ArgumentError, match=r"size must be given .* 6 x 6 in colour and .*2.png is 6 x 6 in grey: pass"
    ):
        images("mine")
    assert images("mine", size=6).pixels.amax((2, 3)).tolist() == [[10] * 3, [40] * 3]
    picture(folder / "wide" / "train" / "cat" / "1.png", 10)
    Image.fromarray(np.full((6, 8, 3), 40, np.uint8)).save(folder / "wide" / "train" / "cat" / "1.png")
    with pytest.raises(ArgumentError, match=r"are square and of one size and kind, but \S*1.png is 8 x 6 in colour:"):
        images("wide")


def test_a_damaged_picture_is_named(folder):
    picture(folder / "mine" / "train" / "cat" / "1.png", 10)
    picture(folder / "mine" / "train" / "cat" / "2.png", 20, size=60)
    whole = (folder / "mine" / "train" / "cat" / "2.png").read_bytes()
    (folder / "mine" / "train" / "cat" / "2.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArgumentError, match=r"2.png must be a picture, but is not \(.*\): restore or remove it"):
        images("mine", size=6)


def _pictures(folder, classes, parts=("train", "val", "test"), endings=("png",) * 4):
    for part, own in zip(parts, classes, strict=True):
        for label in own:
            for index, ending in enumerate(endings):
                path = folder / part / label / f"{label}{index}.{ending}"
                path.parent.mkdir(parents=True, exist_ok=True)
                drawn = np.random.default_rng([index, *map(ord, part + label)]).integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(drawn).save(path, format="png" if ending == "avif" else None)


def test_parts_that_share_classes_are_told(tmp_path):
    _pictures(tmp_path, ("ab", "cd", "ae"))
    with pytest.warns(UserWarning, match=r"test and train of .* share 1 of 2 classes \(a, say\)"):
        FewShotImages(str(tmp_path), ways=2, queries=2, part="test").sample(1, stream(0, "a"))


def test_formats_of_pillow_are_read_and_others_are_told(tmp_path):
    _pictures(tmp_path, ("ab", "cd", "ef"), endings=("png", "tif", "GIF", "jp2", "avif"))
    with pytest.warns(UserWarning, match=r"2 images in .*(train|val|test) are left out, as \.avif is not read"):
        assert len(images(str(tmp_path)).pixels) == 8
    (tmp_path / "train" / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(ArgumentError, match=r"1 of them are links to nothing, such as a/gone\.png: fetch"):
        images(str(tmp_path))


def test_classes_in_a_folder_of_images_are_split_as_cub_is_shipped(tmp_path):
    _pictures(tmp_path, ("abcdefghij",), parts=("images",))
    (tmp_path / "classes.txt").write_text("1 a")
    assert images(str(tmp_path), "test").classes == ("i", "j")
    (tmp_path / "images" / "i" / "i0.png").unlink()
    assert len(images(str(tmp_path), "test").pixels) == 7


def test_one_picture_is_one_row_of_a_table(tmp_path):
    _pictures(tmp_path, ("a",), parts=("images",))
    (tmp_path / "images" / "a0.png").write_bytes((tmp_path / "images" / "a" / "a0.png").read_bytes())
    (tmp_path / "train.csv").write_text("filename,label\na0.png,a\n./a0.png,a\n")
    with pytest.raises(ArgumentError, match=r"row 3 lists a0\.png again"):
        images(str(tmp_path))
    with pytest.raises(ArgumentError, match="dataset must name a dataset or a folder"):
        images(" ")


def test_hidden_files_and_folders_are_no_pictures_and_no_classes(folder):
    for name in ("cat/1.png", "dog/1.png", "cat/._1.png", ".ipynb_checkpoints/1.png", ".git/1.png", "__MACOSX/1.png"):
        picture(folder / ".mine" / "train" / name, 10)  # a hidden folder that is named itself is read
    (folder / ".mine" / "train" / "cat" / "Thumbs.db").write_text("no picture")
    found = images(str(folder / ".mine"))
    assert found.classes == ("cat", "dog")
    assert len(found.pixels) == 2
    assert visible_files(folder / ".mine", "**/*.png") == sorted((folder / ".mine").glob("train/[cd]*/1.png"))


def test_a_path_is_a_folder_and_a_name_is_looked_for_among_the_data(folder, tmp_path, monkeypatch):
    picture(folder / "split" / "train" / "cat" / "1.png", 10)
    for place, shade in (("here", 20), ("home", 30), ("there", 40)):
        picture(tmp_path / place / "split" / "train" / "cat" / "1.png", shade)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    assert [int(images(one).pixels.max()) for one in ("split", "./split", "split/", "~/split")] == [10, 20, 20, 30]
    monkeypatch.chdir(tmp_path / "there")  # what is kept in memory is of the other folder
    assert int(images("./split").pixels.max()) == 40
    with pytest.raises(ArgumentError, match=r"dataset must name a folder, but .*there/none is not there: correct"):
        images("./none")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train/cat/1.npy", r"but has the array 1.npy: save its images as pictures, with PIL"),
        ("train.zip", "but has train.zip: unpack it"),
        ("train/cat/1.heic", "but has none of them: use one of these layouts and endings"),
    ],
)
def test_a_folder_without_pictures_in_parts_is_told_what_to_do(folder, name, message):
    (folder / "mine" / name).parent.mkdir(parents=True)
    (folder / "mine" / name).write_bytes(b"")
    with pytest.raises(ArgumentError, match=rf"mine must have train.csv .* or CLASS/PICTURE .*, {message}"):
        images("mine")


def test_classes_in_no_part_are_split_by_name(folder):
    names = [f"bird {number:02}" for number in range(25)]
    for shade, name in enumerate(names):
        picture(folder / "mine" / name / "1.png", shade)
    parts = [images("mine", part) for part in ("train", "validation", "test")]
    assert [one.classes for one in parts] == [tuple(names[:16]), tuple(names[16:20]), tuple(names[20:])]
    assert parts[2].pixels[:, 0, 0, 0].tolist() == [20, 21, 22, 23, 24]
    picture(folder / "mine" / names[-1] / "2.png", 99)
    assert int(images("mine", "test").pixels.max()) == 99
    for name in "abcd":
        picture(folder / "few" / name / "1.png", 10)
    assert [images("few", part).classes for part in ("train", "validation", "test")] == [("a", "b"), ("c",), ("d",)]


def test_classes_that_cannot_be_split_are_named(folder):
    for name in ("dog", "cat"):
        picture(folder / "mine" / name / "1.png", 10)
    with pytest.raises(ArgumentError, match=r"mine must have at least 3 classes, .*, but has cat, dog: add"):
        images("mine")
    picture(folder / "mine" / "val" / "owl" / "1.png", 10)
    assert images("mine", "validation").classes == ("owl",)
    with pytest.raises(ArgumentError, match=r"the classes cat, dog in no part: move their folders into .*mine.train"):
        images("mine")


class _Files(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        if "long" in self.path:
            self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["long", "of-no-length"])
def test_a_file_is_fetched_once_and_whole(folder, address, name):
    source = Source("file", address + name, hashlib.md5(b"hello").hexdigest())
    assert [path.read_bytes() for path in found("some", [source])] == [b"hello"]
    gone = source._replace(url="http://127.0.0.1:1/")
    assert [path.parent for path in found("some", [gone])] == [cache_folder() / "some"]


def test_what_comes_with_another_checksum_is_not_kept(folder, address):
    with pytest.raises(ArgumentError, match="must have the MD5 checksum 0, but the download has"):
        found("some", [Source("file", address, "0")])
    assert list((cache_folder() / "some").iterdir()) == []


def test_without_a_network_a_sentence_says_where_files_belong(folder):
    source = Source("file.gz", "http://127.0.0.1:1/file.gz", "0")
    with pytest.raises(DownloadError, match=r"some must be on this machine .* put file.gz into .*, or set MESASCOPE_D"):
        found("some", [source])
    with contextlib.suppress(FileNotFoundError):
        assert list((cache_folder() / "some").iterdir()) == []


@pytest.mark.skipif(not REAL, reason="MESASCOPE_DATA is not set")
@pytest.mark.parametrize(
    ("dataset", "train", "test", "classes"),
    [("mnist", 60000, 10000, 10), ("fashion-mnist", 60000, 10000, 10), ("omniglot", 19280, 13180, 964)],
)
def test_real_images_are_as_many_as_there_are(dataset, train, test, classes):
    assert (len(images(dataset).pixels), len(images(dataset, "test").pixels)) == (train, test)
    assert len(images(dataset).classes) == classes
    assert int(images(dataset).labels.bincount().min()) >= 20


def test_colour_pictures_of_a_dataset_have_their_channels_first():
    pixels = np.arange(6 * 3 * 4 * 4, dtype=np.uint8).reshape(6, 3, 4, 4)
    pictures = [(Image.fromarray(np.moveaxis(one, 0, -1)), place % 2) for place, one in enumerate(pixels)]
    assert torch.equal(images_of(pictures).pixels, torch.as_tensor(pixels))


def test_pictures_of_a_dataset_are_read_as_viewers_show_them():
    grey = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))
    palette = Image.fromarray(np.full((4, 4, 3), (200, 10, 30), dtype=np.uint8)).quantize(4)
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    found = images_of([(grey, 0), (palette, 1), (clear, 0), (grey.convert("LA"), 1)]).pixels
    assert found.shape == (4, 3, 4, 4)
    assert torch.equal(found[0], torch.arange(16, dtype=torch.uint8).reshape(4, 4).expand(3, 4, 4))
    assert found[1, :, 0, 0].tolist() == [200, 10, 30]
    assert (found[2] == 255).all()
    assert torch.equal(found[3], found[0])
    assert images_of([grey, grey], [0, 1]).pixels.shape == (2, 1, 4, 4)


def test_arrays_files_and_datasets_give_the_tasks_of_the_dataset_that_they_hold(tmp_path):
    found = images("digits", "train")
    shape = {"ways": 3, "shots": 2, "queries": 4, "rotations": True}
    expected = FewShotImages("digits", **shape).sample(4, stream(0, "tasks"))
    pixels, names = found.pixels.numpy(), [found.classes[label] for label in found.labels]
    np.save(tmp_path / "images.npy", pixels)
    pairs = list(zip(pixels, names, strict=True))
    for own in (
        FewShotArrays(pixels, names, **shape),
        FewShotArrays(found.pixels[:, 0].float() / 255, np.array(names), **shape),
        FewShotArrays(found.pixels[:, 0].double().numpy() / 255, names, **shape),
        FewShotArrays(tmp_path / "images.npy", found.labels, **shape),
        FewShotArrays(pairs, **shape),
        FewShotArrays([{"image": image, "label": name} for image, name in pairs], **shape),
        FewShotArrays(torch.utils.data.TensorDataset(found.pixels, found.labels), **shape),
    ):
        for mine, right in zip(own.sample(4, stream(0, "tasks")), expected, strict=True):
            torch.testing.assert_close(mine, right)


def test_images_of_ones_own_that_are_no_images_are_refused(unchecked, tmp_path):
    pixels = np.zeros((6, 8, 8), dtype=np.uint8)
    (tmp_path / "junk.npy").write_bytes(b"junk")
    np.savez(tmp_path / "many.npz", pixels)
    for arguments, sentence in (
        (([{"img": pixels[0], "label": 1}],), "images must be a dataset of pairs .* but is list \\('image'\\)"),
        (
            (pixels[:, :4], [0] * 6),
            r"images must have the shape \(n, size, size\) or .* but is \(6, 1, 4, 8\): reshape",
        ),
        ((pixels.astype(np.int64), [0] * 6), "images must be bytes or finite floats, but is 'torch.int64': convert"),
        ((np.full((6, 8, 8), np.nan), [0] * 6), "images must be finite in float32, but 384 of 384 numbers are not"),
        ((np.full((6, 8, 8), 1e39), [0] * 6), "images must be finite in float32, but 384 of 384 numbers are not"),
        ((pixels[:0], []), r"images must have the shape \(n, size, size\) or .* but is \(0, 1, 8, 8\)"),
        (([pixels[0], pixels[0, :4]], [0, 1]), "images must be an array, or images of one shape, but list has none"),
        ((None, [0]), "images must be an array, or images of one shape, but NoneType has none"),
        ((pixels, None), "labels must be given with an array of images, but is None"),
        (([], None), "images must be an array, or images of one shape, but list has none"),
        ((iter([]), None), "images must be a dataset of pairs .* but is list_iterator .*: pass labels"),
        ((pixels, [0, 0, 0, None, 1, 1]), "labels must be whole numbers or names"),
        ((pixels, [0, 0, 0, 1, 1, np.nan]), "labels must be whole numbers or names"),
        ((tmp_path / "images.npy", [0] * 6), "images must be an .npy file of numbers, but .* is not .*No such file"),
        ((tmp_path / "junk.npy", [0] * 6), "images must be an .npy file of numbers, but .*junk.npy is not"),
        (
            (tmp_path / "many.npz", [0] * 6),
            "images must be an .npy file, with one array, but is .*: write the array with numpy.save",
        ),
        ((pixels, [0] * 5), r"labels must have shape \(6,\), one per image, but is \(5,\)"),
        ((pixels, [0, 0, 0, 1, 1, 1]), "shots must be at most 3 together with queries"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            FewShotArrays(*arguments, ways=2)
    with pytest.raises(ArgumentError, match="ways must be at most 2, the classes of these images, but is 3"):
        FewShotArrays(pixels, [0, 0, 0, 1, 1, 1], ways=3, queries=1)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_own_arrays_are_copied(dtype):
    pixels = np.zeros((20, 8, 8), dtype)
    families = [
        FewShotArrays(one, [0] * 10 + [1] * 10, ways=2, queries=1) for one in (pixels, torch.from_numpy(pixels))
    ]
    pixels[:] = 5
    assert all(family.sample(1, stream(0, "own")).xq.max() == 0 for family in families)


def test_a_run_goes_on_with_the_images_with_which_it_was_begun(folder):
    for name in ("cat", "dog"):
        for index in range(3):
            picture(folder / "mine" / "train" / name / f"{index}.png", 10 * index)
    family = FewShotImages(str(folder / "mine"), ways=2, queries=1, size=4)
    run = new_run(tiny_study.STUDY, "quick", out=folder / "run")
    drawn = Lab(run, 1).draw(family, 3, "tasks")
    assert torch.equal(Lab(open_run(run.path), 1).draw(family, 3, "tasks").xq, drawn.xq)
    picture(folder / "mine" / "train" / "cat" / "0.png", 200)
    _images.cache_clear()
    for use in (
        lambda lab: lab.draw(family, 3, "tasks"),
        lambda lab: lab.train("layer", None, family, tiny_study.TRAINING),
    ):
        with pytest.raises(
            RunDirectoryError, match=r"mine must be those that .*run was begun with, but have changed: re"
        ):
            use(Lab(open_run(run.path), 1))
