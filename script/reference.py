"""Hooks of the documentation's build: generated reference pages, and links that leave docs/.

mkdocs loads this module (mkdocs.yml). Each page in `PAGES` is rendered from the code that defines its subject and is
full_name to the site only. ARCHITECTURE.md, CHANGELOG.md and CONTRIBUTING.md become pages of the site; links to other
files of the repository become plain text. mkdocstrings loads `BlockingClient`.
"""

from __future__ import annotations

import importlib
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from inspect import getdoc, isclass, isfunction, ismodule
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
INCLUDED = {name: f"{name[:-3].lower()}.md" for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")}
LINK = re.compile(r"\[([^\]]*)\]\(([^()\s#:]+)(#[^()\s]*)?\)")
PAGE_NAME = re.compile(r"`?\b(?:docs/)?([a-z][\w-]*)\.md\b`?")
COMMON_OPTION_COMMANDS = 15  # an option of at least this many commands is listed once
ASYNCIO = "nadi.client.aio"
MODULES = {  # of reference/python.md, in its order; a name that several modules export is listed under the first
    "nadi": "Names that most programs need.",
    "nadi.client": "The blocking client: other classes, values and constants.",
    ASYNCIO: "The same classes for asyncio: methods that wait are coroutines, iterators are asynchronous.",
    "nadi.errors": "All errors are subclasses of `NadiError`.",
    "nadi.spark": 'Helpers for Spark queries. The data source itself is `format("nadi")`.',
    "nadi.process": "A function of your own for each event of a stream.",
    "nadi.functions": "Handlers and HTTP services that a stream triggers.",
    "nadi.lake": "Iceberg tables that follow a stream.",
    "nadi.search": "Full-text search and standing queries.",
    "nadi.testing": "A real server for your tests.",
}


# --- hooks ---------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, render in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=render()))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    for source, name in INCLUDED.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links to included files to their pages, and turn links to other files outside docs/ into text."""
    uri = page.file.src_uri
    source = next((source for source, name in INCLUDED.items() if name == uri), f"docs/{uri}")

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        name = INCLUDED.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if name is not None:
            name = f"{name}/index.md" if (ROOT / "docs" / name).is_dir() else name
            return f"[{text}]({posixpath.relpath(name, posixpath.dirname(uri) or '.')}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # the build reports it
        return text if path in text else f"{text} (`{path}`)"

    return LINK.sub(link, markdown)


# --- pages ---------------------------------------------------------------------------------------------------


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = [*head]
    cells = [[outside_code(cell, lambda text: text.replace("|", "\\|")) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *cells])


def outside_code(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if part[:1] == "`" else change(part) for part in re.split(r"(`[^`]*`)", text))


def linked(text: str) -> str:
    """Turn names of guides, such as `docs/cluster.md`, into links."""
    return PAGE_NAME.sub(r"[\1](../\1.md)", text)


def commands(group: Any = None, path: str = "nadi") -> Iterator[tuple[str, Any]]:
    """Yield each command without subcommands, with its full name."""
    group = group or typer.main.get_command(importlib.import_module("nadi.cli.app").app)
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def parameters(command: Any) -> dict[str, tuple[str, str]]:
    """Return (syntax, help) of a command's arguments and options by name, as in `--help`."""
    context = command.context_class(command)
    records = {parameter.name: parameter.get_help_record(context) for parameter in command.params}
    return {name: record for name, record in records.items() if record is not None and name != "help"}


def cli() -> str:
    by_name = {name: (command, parameters(command)) for name, command in commands()}
    counts = Counter(
        record for _, records in by_name.values() for record in records.values() if record[0].startswith("-")
    )
    common = [record for record, count in counts.items() if count >= COMMON_OPTION_COMMANDS]
    text = ["# Command line", "Every command of `nadi`. `nadi COMMAND --help` prints the same.", "## Common options"]
    text += [options(common), "Each command lists the common options that it accepts."]
    for name, (command, records) in by_name.items():
        own = [record for record in records.values() if record not in common]
        shared = [f"`{long_name(record[0])}`" for record in common if record in records.values()]
        usage = " ".join([name, *command.collect_usage_pieces(command.context_class(command))])
        text += [f"## `{name}`", f"```\n{usage}\n```", linked(command.help or "")]
        text += [options(own)] if own else []
        text += [f"Common options: {', '.join(shared)}."] if shared else []
    return "\n\n".join(text) + "\n"


def long_name(syntax: str) -> str:
    """Return the long name in an option's syntax, such as `-o, --output <table|json>`."""
    return next((word for word in re.split(r"[ ,/]+", syntax) if word.startswith("--")), syntax.partition(" ")[0])


def options(records: Iterable[tuple[str, str]]) -> str:
    return table(("option", "meaning"), ((f"`{syntax}`", linked(escaped(help_))) for syntax, help_ in records))


def escaped(text: str) -> str:
    """Escape HTML, emphasis and links of Markdown, but not code."""
    return outside_code(" ".join(text.split()), lambda part: re.sub(r"([*_\[\]])", r"\\\1", part.replace("<", "&lt;")))


def configuration() -> str:
    panels: dict[str, list[tuple[str, ...]]] = {}
    for option in importlib.import_module("nadi.config").OPTIONS.values():
        default = option.default_text or ("false" if option.default is False else str(option.default or "–"))
        variable = f"`{option.variable}`" if option.variable else ""
        row = (f"`{option.key}`", option.allowed, escaped(default), variable, linked(escaped(option.help)))
        panels.setdefault(option.panel or "General", []).append(row)
    text = ["# Configuration", "The settings of a server: keys of `nadi up --config FILE`, and options of `nadi up`."]
    for panel, rows in panels.items():
        text += [f"## {panel.partition(' (')[0]}", table(("setting", "value", "default", "variable", "meaning"), rows)]
    return "\n\n".join(text)


def metrics() -> str:
    sources = {
        "Streams and reader groups": ["nadi.controller.metrics"],
        "Each server": [
            "nadi.standalone.assembly",
            "nadi.segmentstore.metrics",
            "nadi.access.audit",
            "nadi.access.quotas",
        ],
        "Clusters": ["nadi.cluster.admin.metrics"],
    }
    text = ["# Metrics", "The metrics of `GET /metrics`."]
    for title, modules in sources.items():
        meanings = [meaning for name in modules for meaning in importlib.import_module(name).MEANINGS.values()]
        rows = (
            (f"`{m.full_name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), escaped(m.help))
            for m in meanings
        )
        text += [f"## {title}", table(("metric", "type", "labels", "meaning"), rows)]
    return "\n\n".join(text)


def description() -> dict[str, Any]:
    """Return the OpenAPI description that a server publishes."""
    from nadi.controller.rest.server import ENDPOINTS, describe
    from nadi.loopback_clients import OwnClients
    from nadi.web.site import live_site

    return describe((*ENDPOINTS, *live_site(OwnClients(answer_s=1.0)).endpoints))


def rest() -> str:
    published = description()
    intro = "A server publishes this description at `GET /v1/openapi.json`, as OpenAPI 3.1. The body of an error is an"
    text = ["# REST API", f"{intro} [Error](#error).", "## Common responses"]
    operations = [operation for verbs in published["paths"].values() for operation in verbs.values()]
    counts = Counter(answer for operation in operations for answer in answers(operation))
    common = [answer for answer, count in counts.items() if count > len(operations) / 2 and answer[0] >= "`4"]
    text += [table(("status", "meaning"), (answer[:2] for answer in sorted(common)))]
    for path, verbs in published["paths"].items():
        for verb, operation in verbs.items():
            text += [f"## `{verb.upper()} {path}`", escaped(operation["summary"])]
            if inputs := operation.get("parameters"):
                rows = ((f"`{item['name']}`", item["in"], *described(item["schema"], item)) for item in inputs)
                text += [table(("parameter", "in", "type", "meaning"), rows)]
            if body := operation.get("requestBody"):
                text += [f"Body: {contents(body['content'])}."]
            specific = (answer for answer in answers(operation) if answer not in common)
            text += [table(("status", "meaning", "body"), specific)]
    text += ["## Schemas"]
    for name, schema in published["components"]["schemas"].items():
        required = schema.get("required", ())
        fields = (
            (f"`{field}`", *described(item, {"required": field in required} | item))
            for field, item in schema.get("properties", {}).items()
        )
        text += [f"### {name}", escaped(schema.get("description", "")), table(("field", "type", "meaning"), fields)]
    return "\n\n".join(part for part in text if part)


def answers(operation: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (status, meaning, body) of each response."""
    return [
        (f"`{code}`", escaped(response["description"]), contents(response.get("content", {})))
        for code, response in operation["responses"].items()
    ]


def described(schema: Mapping[str, Any], attributes: Mapping[str, Any]) -> tuple[str, str]:
    """Return type and meaning of a parameter or field."""
    meaning = escaped(attributes.get("description", ""))
    return kind_of(schema), meaning if attributes.get("required") else f"Optional. {meaning}".strip()


def contents(content: Mapping[str, Any]) -> str:
    kinds = ((kind_of(item["schema"]) if "schema" in item else "", f"`{media}`") for media, item in content.items())
    return ", ".join(f"{kind} as {media}" if kind else media for kind, media in kinds)


def kind_of(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if alternatives := schema.get("anyOf"):
        return " or ".join(map(kind_of, alternatives))
    if choices := schema.get("enum"):
        return ", ".join(f"`{item}`" for item in choices)
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"array of {' and '.join(map(kind_of, schema.get('prefixItems') or [schema.get('items', {})]))}"
    return kind


def spark_options() -> str:
    from nadi.spark.options.table import markdown

    intro = 'The options of `format("nadi")` and `format("pravega")`. `nadi spark options` prints the same.'
    return f"# Spark options\n\n{intro}\n\n{linked(markdown())}"


def compatibility() -> str:
    from tests.compatibility import table as recorded

    return f"# Compatibility tables\n\n{recorded.render()}"


def decisions() -> str:
    """A table of the decision records, by number."""
    titles = [
        (path.name, path.read_text().partition("\n")[0]) for path in sorted((ROOT / "docs/decisions").glob("*.md"))
    ]
    rows = [(f"[{number}]({name})", title) for name, line in titles for number, title in [line[2:].split(": ", 1)]]
    about = "Each record gives one decision with its context, alternatives and cost."
    return f"# Decisions\n\n{about}\n\n{table(('number', 'decision'), rows)}"


def public_names(module: str) -> Iterator[tuple[str, str]]:
    """Yield name and definition of each export of a module."""
    imported = importlib.import_module(module)
    for name in getattr(imported, "__all__", None) or [name for name in vars(imported) if name[0] != "_"]:
        value = getattr(imported, name)
        is_own = isclass(value) or isfunction(value)
        if is_own and value.__module__.startswith("nadi."):
            yield name, f"{value.__module__}.{value.__qualname__}"
        elif not ismodule(value) and not is_own and name.isupper():
            yield name, f"{module}.{name}"


def python() -> str:
    text = ["# Python API"]
    names: set[str] = set()
    homes: set[str] = set()
    for module, about in MODULES.items():
        text += [f"## {module}", about]
        exported = dict(public_names(module))
        if module == ASYNCIO:
            text += [", ".join(f"`{name}`" for name in exported if name in names) + "."]
            exported = {name: home for name, home in exported.items() if name not in names}
        for name, home in exported.items():
            if home not in homes:
                text += [f"::: {home}\n    options:\n      heading: {name}\n      toc_label: {name}"]
        names |= exported.keys()
        homes |= {*exported.values()}
    return "\n\n".join(text) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "cli": cli,
    "configuration": configuration,
    "metrics": metrics,
    "rest": rest,
    "python": python,
    "spark-options": spark_options,
    "compatibility": compatibility,
}


# --- the client's docstrings ---------------------------------------------------------------------------------


class BlockingClient(griffe.Extension):
    """Documents the blocking client, whose methods are created from the asyncio ones on import."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for name in ("classes", "manager") if pkg.name == "nadi" else ():
            module = pkg[f"client.blocking.{name}"]
            for known in [one for one in module.members.values() if isinstance(one, griffe.Class)]:
                made = getattr(importlib.import_module(module.path), known.name)
                known.docstring = known.docstring or docstring_of(made)
                for member in [one for one in known.members.values() if one.name[0] != "_"]:
                    value = getattr(made, member.name, None)
                    if isinstance(member, griffe.Attribute) and isfunction(value):
                        twin = pkg[f"{value.__module__}.{value.__qualname__}".removeprefix("nadi.")]
                        known.set_member(member.name, blocking(twin, member.name))
                    elif isfunction(value) or isinstance(value, property):
                        member.docstring = docstring_of(value) or member.docstring
        fence_examples(pkg)


def blocking(method: griffe.Function, name: str) -> griffe.Function:
    made = copy(method)
    made.name, made.labels = name, method.labels - {"async"}
    if "Async" in str(made.returns):
        made.returns = str(made.returns).replace("Async", "")
    return made


def docstring_of(value: object) -> griffe.Docstring | None:
    text = getdoc(value)
    return griffe.Docstring(text) if text else None


def fence_examples(parent: griffe.Object) -> None:
    """Mark doctests in docstrings as code."""
    for member in parent.members.values():
        if isinstance(member, griffe.Object):
            if member.docstring:
                paragraphs = member.docstring.value.split("\n\n")
                fenced = (f"```pycon\n{one}\n```" if one.startswith(">>>") else one for one in paragraphs)
                member.docstring.value = "\n\n".join(fenced)
            fence_examples(member)
