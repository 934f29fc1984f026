"""The documentation as a site: `scripts/docs` builds it with Sphinx, MyST and the theme Furo.

Nothing is fetched, when it is built or when it is read: fonts are the system's own.
"""

project = "fusionplan"
author = "The fusionplan authors"
project_copyright = author

extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["search/**"]
# A link that leads nowhere is an error, with -W.
nitpicky = True
# Two hyphens begin an option, and are no dash.
smartquotes = False

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
pygments_style = "friendly"
