"""A cluster that never ran: events, quota, placement, and what each policy makes of a trace."""
