"""What authors import: decorators, durable calls and the options they take. Each name is also exported by `backstay`."""
