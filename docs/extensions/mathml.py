"""Equations as MathML, written when the site is built: no script, no font and no network is needed to read them."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer with Sphinx."""
    inline, block = (_inline, None), (_block, None)
    app.add_html_math_renderer("mathml", inline_renderers=inline, block_renderers=block)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer: Any, node: Any) -> None:
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: Any) -> None:
    writer.body.append(f'<div class="equation">{convert(node.astext(), display="block")}</div>\n')
    raise nodes.SkipNode
