"""Every error the library raises on purpose; one root class to catch them all."""


class FusionError(Exception):
    """Root of the library's errors: the message names what was wrong and how to mend it."""


class TraceError(FusionError):
    """A model could not be run, exported or understood."""


class MismatchError(FusionError):
    """Models that cannot be fused with each other."""


class OptionError(FusionError, ValueError):
    """An argument out of its range or not known."""


class RecipeError(OptionError):
    """A recipe with mistakes; `problems` has a line of text for each, which starts with where it is."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class DataError(FusionError):
    """Data is missing, empty, or not of the form the model takes."""


class CheckpointError(FusionError):
    """A file that is not a checkpoint of the model."""


class ClusterError(FusionError):
    """A scheduler or its workers cannot be used."""


class ShortfallError(FusionError):
    """The result falls short of what was asked for; `allow_shortfall=True` accepts that."""


class VerificationError(FusionError):
    """A result did not pass the library's own check."""
