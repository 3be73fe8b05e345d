"""Location of a store in HDFS: its URL, and the few settings outside Hadoop's configuration.

`hdfs://host:port/folder`, or `hdfs://service/folder` with a name service from `hdfs-site.xml` in HADOOP_CONF_DIR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from nadi.errors import InvalidArgumentError

SCHEME = "hdfs"
_FORM = "use hdfs://host:port/folder, or hdfs://service/folder with a name service from HADOOP_CONF_DIR"
_REPLICATION, _BLOCK = "dfs.replication", "dfs.blocksize"
_PASSED_ON = (
    "dfs.client.use.datanode.hostname",
    "dfs.client.block.write.replace-datanode-on-failure.enable",
    "dfs.client.block.write.replace-datanode-on-failure.policy",
    "dfs.client.block.write.replace-datanode-on-failure.best-effort",
)
_OPTIONS = (_REPLICATION, _BLOCK, *_PASSED_ON)
_MOST_REPLICAS = 512  # the name node's limit
_LEAST_BLOCK, _MOST_BLOCK = 1 << 20, 1 << 40  # by default, a name node refuses smaller blocks


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """Location of a store. nodes: URL of the name node or name service. root: the folder. replication: None for the
    name node's default. block_bytes: the smallest block that the name node accepts. settings: of the client."""

    nodes: str
    root: str
    replication: int | None = None
    block_bytes: int = _LEAST_BLOCK
    settings: dict[str, str] = field(default_factory=dict)


def where(url: str, **options: str) -> HdfsLocation:
    """Parse URL and options. InvalidArgumentError: not such a URL, or an unknown or invalid option.

    >>> where("hdfs://name-node:8020/data/nadi", **{"dfs.replication": "2"}).root
    '/data/nadi'
    """
    check_form(url)
    for name in options.keys() - set(_OPTIONS):
        raise InvalidArgumentError(
            f"{name} isn't an option of HDFS: use {', '.join(_OPTIONS)}, and set everything else in hdfs-site.xml "
            "and core-site.xml in HADOOP_CONF_DIR"
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
    """Raise InvalidArgumentError unless the URL has a name node or service, and a folder."""
    parts = urlsplit(url)
    try:
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidArgumentError(f"{url}: invalid port: {_FORM}") from None
    folders = parts.path.rstrip("/").split("/")[1:]
    if not host or parts.fragment or not folders:
        raise InvalidArgumentError(f"{url}: the {'folder' if host else 'name node'} is missing: {_FORM}")
    if any(not name or name in (".", "..") or ":" in name for name in folders):
        raise InvalidArgumentError(f"{url}: a folder can't be empty, . or .., or have a colon in its name")


def _number(options: dict[str, str], name: str, least: int, most: int) -> int | None:
    if name not in options:
        return None
    value = options[name]
    if not re.fullmatch(r"[0-9]{1,13}", value) or not least <= int(value) <= most:
        raise InvalidArgumentError(f"{name} must be from {least:,} to {most:,}, not {value!r}")
    return int(value)
