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
    data |= audit.reading
    ignored = [*dict.fromkeys([*dropped, *audit.left_aside, *audit.reading.get("ignore", ())])]
    data |= {"ignore": ignored} if ignored else {}
    return toml_text({"data": data, "algorithm": [{"name": "recommended"}]}).strip()
