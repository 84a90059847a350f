"""What the documents lead to is there: files by their links, commands by their names."""

import re
from pathlib import Path

import pytest
import typer

from tacit.cli import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = typer.main.get_command(app)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text("utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", ["README.md", "docs/guide.md", "docs/audit.md"])
def test_commands_and_their_options_are_there(document: str) -> None:
    text = (ROOT / document).read_text("utf-8").replace("\\\n", " ")
    lines = re.findall(r"^tacit ([^#\n]+)|`tacit ([^`]+)`", text, re.MULTILINE)
    assert lines
    for line in (first or second for first, second in lines):
        command, words = COMMANDS, line.split()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command is not COMMANDS, f"tacit {line}"
        known = {option for given in command.params for option in given.opts + given.secondary_opts}
        wanted = {word for word in words if re.fullmatch(r"--[a-z-]+", word)}
        assert wanted <= known, f"tacit {line}: {wanted - known}"
