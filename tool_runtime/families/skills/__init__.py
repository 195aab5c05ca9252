"""Skills: what a folder with a SKILL.md teaches, and the tools of a skills agent."""
