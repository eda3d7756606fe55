"""Results as pages: tables and chapters in Markdown, figures as PNG, whatever was measured."""

from .document import Chapter, Entry, Figure, Item, Line, Panel, Row, Table, Value
from .pages import write_chapter, write_index
from .verdict import RULES, Verdict

__all__ = [
    "RULES",
    "Chapter",
    "Entry",
    "Figure",
    "Item",
    "Line",
    "Panel",
    "Row",
    "Table",
    "Value",
    "Verdict",
    "write_chapter",
    "write_index",
]
