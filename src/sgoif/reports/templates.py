"""What every page of the package shares: its assets, their digests for the content security policy, text made safe."""

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from importlib import resources


def read_asset(name: str) -> str:
    """The text of a file that pages are made of."""
    return resources.files("sgoif.reports").joinpath("assets", name).read_text(encoding="utf-8")


def policy_digest(text: str) -> str:
    """How a content security policy names a script or style sheet inside the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def join_scripts(names: Sequence[str]) -> str:
    """Scripts of a page as one, which shares no names with anything else."""
    return '(() => {\n"use strict";\n' + "\n".join(map(read_asset, names)) + "})();\n"


def page_policy(style: str, script: str = "", *, images: str, further: str = "") -> str:
    """The policy that allows this style sheet, this script and pictures from there, and nothing else."""
    scripts = f" script-src {policy_digest(script)}; require-trusted-types-for 'script'; trusted-types 'none';"
    return (
        f"default-src 'none'; img-src {images};{further} style-src {policy_digest(style)};{scripts if script else ''}"
        " base-uri 'none'; form-action 'none'"
    )


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """An asset with its place holders filled in one pass: a value that looks like one is not filled in again.

    Every page has the same `head`, which has place holders of its own.
    """
    whole = read_asset(template).replace("{{head}}", read_asset("head.html"))
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], whole)


def escape_html(text: str) -> str:
    """Text that may stand in markup and attributes."""
    # Lone surrogates, from file names that are not Unicode, cannot be written as UTF-8.
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))


def show_control_characters(text: str) -> str:
    """Text with a sign in place of every control character and line separator, as the pages' script shows it."""
    signs = re.sub(r"[\x00-\x1f]", lambda found: chr(0x2400 + ord(found[0])), text)
    return re.sub("[\x7f-\x9f\u2028\u2029]", "\u2424", signs)
