-- Texts that fronts keep by kind and name, such as schemas.
CREATE TABLE documents (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (kind, name)
);
