"""The reference backend: one readable numpy decoder in fp32, exact to the bit whatever shares a pass."""

from forerun.backends.reference.model import ReferenceModel

__all__ = ["ReferenceModel"]
