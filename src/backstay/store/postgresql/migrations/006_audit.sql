-- Commands of all instances in the order of their commits, for the audit. In SQLite the table is in that order.
create index command_position on command (position);
