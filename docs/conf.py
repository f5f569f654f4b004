"""How the documentation is built. Nothing is fetched: formulas are MathML, and figures lie beside the pages."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import perinvfl  # noqa: E402

project = "perinvfl"
author = "the perinvfl authors"
copyright = "the perinvfl authors, MIT licence"
version = release = perinvfl.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "formulas", "generate"]
html_math_renderer = "mathml"
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["equations/*"]
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"perinvfl {version}"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_copy_source = False
html_show_sphinx = False
