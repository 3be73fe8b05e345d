"""Where a store in HDFS is: its URL, and the few settings that aren't Hadoop's configuration.

`hdfs://host:port/folder`, or `hdfs://service/folder` with a name service that `hdfs-site.xml` in HADOOP_CONF_DIR knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from nadi.errors import InvalidArgumentError

SCHEME = "hdfs"
_FORM = "HDFS is hdfs://host:port/folder, or hdfs://service/folder with a name service of HADOOP_CONF_DIR"
_REPLICATION, _BLOCK = "dfs.replication", "dfs.blocksize"
_PASSED_ON = (
    "dfs.client.use.datanode.hostname",
    "dfs.client.block.write.replace-datanode-on-failure.enable",
    "dfs.client.block.write.replace-datanode-on-failure.policy",
    "dfs.client.block.write.replace-datanode-on-failure.best-effort",
)
_OPTIONS = (_REPLICATION, _BLOCK, *_PASSED_ON)
_MOST_REPLICAS = 512  # as many as a name node takes
_LEAST_BLOCK, _MOST_BLOCK = 1 << 20, 1 << 40  # a name node refuses smaller ones, unless it is told otherwise


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """nodes: URL of the name node, or of the name service. root: the folder. replication: None is what the name node
    says. block_bytes: of the smallest block that the name node takes. settings: of the client."""

    nodes: str
    root: str
    replication: int | None = None
    block_bytes: int = _LEAST_BLOCK
    settings: dict[str, str] = field(default_factory=dict)


def where(url: str, **options: str) -> HdfsLocation:
    """What URL and options say. InvalidArgumentError: it isn't such a URL, or such an option.

    >>> where("hdfs://name-node:8020/data/nadi", **{"dfs.replication": "2"}).root
    '/data/nadi'
    """
    check_form(url)
    for name in options.keys() - set(_OPTIONS):
        raise InvalidArgumentError(
            f"{name} isn't an option of HDFS here, which are {', '.join(_OPTIONS)}: all else goes into hdfs-site.xml "
            "and core-site.xml, in HADOOP_CONF_DIR"
        )
    parts = urlsplit(url)
    replication = _number(options, _REPLICATION, 1, _MOST_REPLICAS)
    block_bytes = _number(options, _BLOCK, _LEAST_BLOCK, _MOST_BLOCK)
    return HdfsLocation(
        f"{SCHEME}://{parts.netloc}",
        parts.path.rstrip("/"),
        replication,
        _LEAST_BLOCK if block_bytes is None else block_bytes,
        {name: options[name] for name in _PASSED_ON if name in options},
    )


def check_form(url: str) -> None:
    """InvalidArgumentError unless it names a name node, or a service, and a folder."""
    parts = urlsplit(url)
    try:
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidArgumentError(f"{url}: its port is no number: {_FORM}") from None
    folders = parts.path.rstrip("/").split("/")[1:]
    if not host or parts.fragment or not folders:
        raise InvalidArgumentError(f"{url} names no {'folder' if host else 'name node'}: {_FORM}")
    if any(not name or name in (".", "..") or ":" in name for name in folders):
        raise InvalidArgumentError(f"{url}: HDFS takes no folder that is empty, . or .., or has a colon in its name")


def _number(options: dict[str, str], name: str, least: int, most: int) -> int | None:
    if name not in options:
        return None
    value = options[name]
    if not re.fullmatch(r"[0-9]{1,13}", value) or not least <= int(value) <= most:
        raise InvalidArgumentError(f"{name} is a number from {least:,} to {most:,}, not {value!r}")
    return int(value)
