"""What the stubs call an array."""
from typing import Any, Protocol, TypeVar


class SupportsArray(Protocol):
    """A NumPy array, or anything with DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


Array = TypeVar("Array", bound=SupportsArray)  # the result is of the argument's kind
