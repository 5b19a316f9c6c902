"""The version, where nothing heavy has to be imported for it; `pyproject.toml` names the same."""

__version__ = "0.1.0"
