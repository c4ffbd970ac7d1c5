"""What all HTML pages share: bucket colors, templates, style sheets and scripts."""
