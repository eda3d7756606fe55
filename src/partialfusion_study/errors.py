"""The study's own error, a subclass of the library's root error."""

from partialfusion.errors import FusionError


class StudyError(FusionError):
    """Part of a study failed, or its results cannot be read or written."""
