"""How NVFlare's files name the classes that a job, a server or a site builds."""

from collections.abc import Iterator

from nvflare.fuel.utils.json_scanner import Node

CONTEXT_BUILDER = "fedmerit.engines.nvflare.encryption.ContextBuilder"  # not imported here: it needs TenSEAL


def class_path(kind: type) -> str:
    """Return the name of a class as NVFlare's files spell it."""
    return f"{kind.__module__}.{kind.__name__}"


def find_components(element: object, path: list[str]) -> Iterator[Node]:
    """Yield every part of a job's configuration that names a class, so NVFlare would build it."""
    if isinstance(element, dict) and {"path", "class_path"} & set(element) and element.get("config_type") != "dict":
        node = Node(element)
        node.paths = path
        yield node
    inner = element.items() if isinstance(element, dict) else enumerate(element) if isinstance(element, list) else ()
    for key, value in inner:
        yield from find_components(value, [*path, str(key)])
