use proptest::prelude::*;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

/// The lines that a block decodes to.
fn lines(decoder: &mut Decoder, block: &[u8]) -> Result<String, DecodeError> {
    let mut out = Vec::new();
    let mut block = decoder.block(block);
    while let Some(field) = block.next(&mut out)? {
        let line = [field.name.of(&out), b": ", field.value.of(&out), b"\r\n"].concat();
        assert!(out.ends_with(&line));
    }
    Ok(String::from_utf8(out).unwrap())
}

/// RFC 7541 §C.3 and §C.4: three requests, as they are and Huffman coded.
#[test]
fn requests_of_the_specification() {
    let first = ":method: GET\r\n:scheme: http\r\n:path: /\r\n:authority: www.example.com\r\n";
    let second = format!("{first}cache-control: no-cache\r\n");
    let third = ":method: GET\r\n:scheme: https\r\n:path: /index.html\r\n\
                 :authority: www.example.com\r\ncustom-key: custom-value\r\n";
    for blocks in [
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ] {
        let mut decoder = Decoder::default();
        for (block, expected) in blocks.iter().zip([first, &second, third]) {
            assert_eq!(lines(&mut decoder, &bytes(block)).as_deref(), Ok(expected));
        }
    }
}

/// RFC 7541 §C.5: three responses with a table of 256 bytes.
#[test]
fn responses_of_the_specification_evict() {
    let mut decoder = Decoder::new(256);
    let rest = "cache-control: private\r\ndate: Mon, 21 Oct 2013 20:13:21 GMT\r\n\
                location: https://www.example.com\r\n";
    let first = "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 \
                 3133 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 \
                 7861 6d70 6c65 2e63 6f6d";
    for (block, expected) in [
        (first, format!(":status: 302\r\n{rest}")),
        ("4803 3330 37c1 c0bf", format!(":status: 307\r\n{rest}")),
        (
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d \
             54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 \
             5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e \
             3d31",
            ":status: 200\r\ncache-control: private\r\ndate: Mon, 21 Oct 2013 20:13:22 GMT\r\n\
             location: https://www.example.com\r\ncontent-encoding: gzip\r\n\
             set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1\r\n"
                .to_owned(),
        ),
    ] {
        assert_eq!(lines(&mut decoder, &bytes(block)), Ok(expected));
    }
}

#[test]
fn what_breaks_the_format_is_told() {
    for (block, error) in [
        // Number 0, and one beyond both tables.
        ("80", DecodeError::Index),
        ("be", DecodeError::Index),
        ("7e00", DecodeError::Index),
        // The end comes within a name, a value, a number.
        ("40", DecodeError::Short),
        ("4001", DecodeError::Short),
        ("400161", DecodeError::Short),
        ("40016105", DecodeError::Short),
        ("ff", DecodeError::Short),
        ("ff80808080808000", DecodeError::Number),
        ("4001618100", DecodeError::Huffman),
        // The table's size: too large, and behind a field.
        ("3fe21f", DecodeError::TableSize),
        ("8220", DecodeError::TableSize),
        ("3fffffff7f", DecodeError::TableSize),
    ] {
        let found = lines(&mut Decoder::default(), &bytes(block));
        assert_eq!(found, Err(error), "{block}");
    }
    // As large as was agreed is allowed, and twice.
    let found = lines(&mut Decoder::default(), &bytes("203fe11f82"));
    assert_eq!(found.as_deref(), Ok(":method: GET\r\n"));
}

#[test]
fn what_is_encoded_takes_what_the_static_table_has() {
    for (name, value, len) in [
        ("Content-Type", "a/b", 2 + 1 + 3),
        ("set-cookie", "a=1", 2 + 1 + 3),
        ("Age", "0", 2 + 1 + 1),
        ("x-own", "1", 2 + 5 + 1 + 1),
    ] {
        let mut out = Vec::new();
        encode::field(&mut out, name.as_bytes(), value.as_bytes());
        assert_eq!(out.len(), len, "{name}");
        let expected = format!("{}: {value}\r\n", name.to_ascii_lowercase());
        assert_eq!(lines(&mut Decoder::default(), &out), Ok(expected));
    }
    // Each name of the static table is found.
    for (number, (name, value)) in STATIC.iter().enumerate() {
        let number = number as u8 + 1;
        let mut out = Vec::new();
        encode::with_static_name(&mut out, number, value.as_bytes());
        let expected = format!("{name}: {value}\r\n");
        assert_eq!(lines(&mut Decoder::default(), &out), Ok(expected));
        if !name.starts_with(':') {
            let mut out = Vec::new();
            encode::field(&mut out, name.as_bytes(), b"v");
            assert!(out.len() <= 4, "{name}: {out:?}");
        }
    }
    for code in 100..=999 {
        let mut out = Vec::new();
        encode::status(&mut out, code);
        let expected = format!(":status: {code}\r\n");
        assert_eq!(lines(&mut Decoder::default(), &out), Ok(expected));
    }
}

proptest! {
    #[test]
    fn fields_come_back(
        fields in proptest::collection::vec(("[a-z0-9:-]{1,300}", "[ -~]{0,300}"), 0..20),
    ) {
        let (mut block, mut expected) = (Vec::new(), String::new());
        encode::no_table(&mut block);
        for (name, value) in &fields {
            encode::field(&mut block, name.as_bytes(), value.as_bytes());
            expected += &format!("{name}: {value}\r\n");
        }
        prop_assert_eq!(lines(&mut Decoder::default(), &block), Ok(expected));
    }

    #[test]
    fn nothing_panics(
        blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..5),
    ) {
        let mut decoder = Decoder::default();
        for block in &blocks {
            let (mut out, mut fields) = (Vec::new(), 0);
            let mut reading = decoder.block(block);
            while let Ok(Some(field)) = reading.next(&mut out) {
                fields += 1;
                prop_assert!(field.value.end as usize + 2 == out.len());
            }
            // Each takes a byte at least, and gives no more than the table has.
            prop_assert!(fields <= block.len());
            prop_assert!(out.len() <= block.len() * (4096 + 8));
        }
    }
}
