"""The paper's experiments and their reports, on top of the public interface of `partialfusion`."""
