"""Results as pages: tables and chapters in Markdown, figures as PNG, whatever was measured."""

from .document import Chapter, Entry, Figure, Line, Panel, Row, Table, Value
from .pages import write_chapter, write_index

__all__ = [
    "Chapter",
    "Entry",
    "Figure",
    "Line",
    "Panel",
    "Row",
    "Table",
    "Value",
    "write_chapter",
    "write_index",
]
