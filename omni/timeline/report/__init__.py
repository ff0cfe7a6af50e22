"""Reports of traces, in numbers."""

from omni.timeline.report.report import Report, make_report
from omni.timeline.report.text import report_lines

__all__ = ["Report", "make_report", "report_lines"]
