"""HTML for people, from templates. What is filled in is data: it is never read as markup, and its
control characters are shown."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..terminal import count, duration, escaped, size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **data: Any) -> str:
    """The template of this name, filled in."""
    return _environment().get_template(template).render(**data)


def text_of(name: str) -> Markup:
    """A file of our own that is put in a page as it stands: styles, a script."""
    from markupsafe import Markup

    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    # Imported here: few commands write HTML.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.globals["text_of"] = text_of
    made.filters |= {"duration": duration, "size": size, "count": count}
    return made


def _shown(value: Any) -> Any:
    # What is markup already was made by a template.
    return escaped(value) if type(value) is str else value
