package main

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// A field of a message of protobuf.
type field struct {
	number protowire.Number
	// The field as it is encoded, with its tag.
	whole []byte
	// Its value: of a number, or of text, bytes and messages.
	value uint64
	bytes []byte
}

// The fields of a message in order. Those of the suite that are of interest here are
// numbers, text and messages.
func fields(message []byte) ([]field, error) {
	var all []field
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil, protowire.ParseError(tag)
		}
		it := field{number: number}
		length := 0
		switch kind {
		case protowire.VarintType:
			it.value, length = protowire.ConsumeVarint(message[tag:])
		case protowire.BytesType:
			it.bytes, length = protowire.ConsumeBytes(message[tag:])
		default:
			length = protowire.ConsumeFieldValue(number, kind, message[tag:])
		}
		if length < 0 {
			return nil, fmt.Errorf("field %d: %w", number, protowire.ParseError(length))
		}
		it.whole = message[:tag+length]
		message = message[tag+length:]
		all = append(all, it)
	}
	return all, nil
}

func appendNumber(message []byte, number protowire.Number, value uint64) []byte {
	message = protowire.AppendTag(message, number, protowire.VarintType)
	return protowire.AppendVarint(message, value)
}

func appendBytes(message []byte, number protowire.Number, value []byte) []byte {
	message = protowire.AppendTag(message, number, protowire.BytesType)
	return protowire.AppendBytes(message, value)
}
