"""What follows from an audit as an experiment file that runs."""

from typing import Any

from perinvfl.audit.audit import Audit
from perinvfl.core.toml_text import toml_text


def experiment(audit: Audit) -> str:
    """Read as the audit read it, without what is to be dropped and what no model can use."""
    dropped = [column.name for column in audit.advised("drop")]
    held = [context.name for context in audit.contexts if context.held_out]
    data: dict[str, Any] = {"benchmark": "file", "path": audit.file, "label": audit.label}
    data |= {"client": audit.client, "context": audit.context}
    data |= {"test_contexts": held} if held else {}
    ignored = [*dict.fromkeys([*dropped, *audit.left_aside, *audit.reading.get("ignore", ())])]
    data |= {key: _without(ignored, value) for key, value in audit.reading.items() if _without(ignored, value)}
    data |= {"ignore": ignored} if ignored else {}
    return toml_text({"data": data, "algorithm": [{"name": "recommended"}]}).strip()


def _without(ignored: list[str], setting: Any) -> Any:
    """A list of columns, or a table by column, without those that are ignored."""
    if isinstance(setting, dict):
        return {name: value for name, value in setting.items() if name not in ignored}
    return [name for name in setting if name not in ignored] if isinstance(setting, list) else setting
