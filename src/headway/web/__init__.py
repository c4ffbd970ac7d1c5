"""The shared parts of all HTML pages: bucket colors, templates, style sheets and scripts."""
