-- Texts that fronts keep by kind and name, such as schemas.
CREATE TABLE documents (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
