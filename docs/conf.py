"""How the documentation is built. Nothing is fetched: formulas are MathML, and figures lie beside the pages."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import perinvfl  # noqa: E402

project = "perinvfl"
author = "the perinvfl authors"
copyright = "the perinvfl authors, MIT licence"
version = release = perinvfl.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "formulas", "generate", "accessible"]
html_math_renderer = "mathml"
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["equations/*"]
highlight_language = "none"
smartquotes_action = "qe"  # quotes and dots; two dashes stay, they begin an option

os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # `!perinvfl`
nb_execution_mode = "force"  # notebooks are kept without outputs
nb_execution_in_temp = True  # what they write is not kept
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

autodoc_member_order = "bysource"
autoclass_content = "both"  # the arguments of the estimators
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
