"""Parts of side_report.py."""
