"""Common part of the clients of Google's APIs (session, errors), and a reader of the metadata server."""
